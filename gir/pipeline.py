"""The story of a request through Tier 2."""
