"""Publishes `ClusterView`s: rebuilds only what a change touches, so that a beat costs the same in a large fleet."""

from collections.abc import Iterable

from gir.model.cluster import ClusterState, ClusterView, PoolState, index_view
from gir.model.ids import ClusterId, ModelId


class ViewBuilder:
    """Holds the current view; `publish` swaps it."""

    __slots__ = ("_offered", "_states", "view")

    def __init__(self) -> None:
        self._states: dict[ClusterId, ClusterState] = {}
        self._offered: dict[ClusterId, frozenset[ModelId]] = {}
        self.view = ClusterView()

    def publish(self, changed: Iterable[tuple[ClusterState, frozenset[ModelId]]], *, fail_open: bool) -> ClusterView:
        """Replace the states in `changed`, each with every model name it offers; return the new view.

        Clusters are in order of their ids.
        """
        same_models = True
        names: set[ModelId] = set()
        for state, offered in changed:
            self._states[state.id] = state
            same_models = same_models and offered == self._offered.get(state.id)
            self._offered[state.id] = offered
            names |= offered
        version = self.view.version + 1
        if same_models:
            self.view = self._patched(version, names, fail_open=fail_open)
        else:
            self._states = dict(sorted(self._states.items()))
            self.view = index_view(version, tuple(self._states.values()), fail_open=fail_open)
        return self.view

    def _patched(self, version: int, names: Iterable[ModelId], *, fail_open: bool) -> ClusterView:
        """The view with the same index, pointing at the new states of the clusters that serve `names`."""
        by_model = dict(self.view.by_model)
        states = self._states
        for name in names:
            by_model[name] = tuple([states[old.id] for old in by_model[name]])
        return ClusterView(
            version=version,
            clusters=tuple(states.values()),
            by_model=by_model,
            base_of=self.view.base_of,
            fail_open=fail_open,
        )


def names_of(pools: Iterable[PoolState]) -> set[ModelId]:
    """Every model name the pools serve or can load."""
    names: set[ModelId] = set()
    for pool in pools:
        names.add(pool.model)
        names.update(pool.adapters_resident)
        names.update(pool.adapters_loadable)
    return names
