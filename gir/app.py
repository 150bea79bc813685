"""Composition root of the router: the only module that names concrete adapters."""
