"""Ways to hurt processes and connections on this machine, each with its undo."""
