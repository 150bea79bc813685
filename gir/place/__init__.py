"""Placement: which cluster, in which order, and why; and which model, when a rule rewrites it."""

from gir.place.decisions import as_json
from gir.place.placer import Dispatch, Placer
from gir.place.rewrite import CanaryEvent, Rewrite, Rewriter

__all__ = ["CanaryEvent", "Dispatch", "Placer", "Rewrite", "Rewriter", "as_json"]
