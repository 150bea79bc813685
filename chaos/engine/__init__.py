"""A simulated LLM engine: a pure core (`core`), the shapes of real servers around it, and faults to order."""
