"""Every pool of this cluster: which pods there are, who serves a model, whose news it is.

Thin on purpose: it finds the pool or the pod and hands the event on.
"""

from collections.abc import Iterable

import msgspec

from gir.model.ids import ModelId, PodId
from tier1_agent.pods import Pod, PodSpec, PodState
from tier1_agent.pool import Pool, PoolSettings
from tier1_agent.signals import Signals


class Change(msgspec.Struct, frozen=True):
    """What `Fleet.apply` did."""

    added: tuple[PodId, ...] = ()
    removed: tuple[PodId, ...] = ()
    updated: tuple[PodId, ...] = ()


class Fleet:
    """Pools by base model. A model once served keeps its (maybe empty) pool, so that it is 503 and not 404."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self.pools: dict[ModelId, Pool] = {}
        self._pods: dict[PodId, Pod] = {}
        self._base_of: dict[ModelId, ModelId] = {}

    def __repr__(self) -> str:
        return f"<Fleet {' '.join(map(repr, self.pools.values()))}>"

    def apply(self, specs: Iterable[PodSpec], now_s: float) -> Change:
        """Make the fleet what discovery found. Pods that join a running fleet start slowly: their caches are cold."""
        wanted = {spec.id: spec for spec in specs}
        running = bool(self._pods)
        removed = [id_ for id_, pod in self._pods.items() if id_ not in wanted or _moved(pod.spec, wanted[id_])]
        for id_ in removed:
            pod = self._pods.pop(id_)
            self.pools[pod.spec.model].remove(pod, now_s)
        added: list[PodId] = []
        updated: list[PodId] = []
        for spec in wanted.values():
            known = self._pods.get(spec.id)
            if known is None:
                pool = self.pools.setdefault(spec.model, Pool(spec.model, self._settings))
                self._pods[spec.id] = pool.add(spec, ramp_from_s=now_s if running else None)
                added.append(spec.id)
            elif known.spec != spec:
                self.pools[spec.model].respec(known, spec)
                updated.append(spec.id)
        self._base_of = {}
        for pod in self._pods.values():
            self._learn_names(pod)
        return Change(tuple(added), tuple(removed), tuple(updated))

    def _learn_names(self, pod: Pod) -> None:
        spec = pod.spec
        for name in (*pod.adapters_listed, *spec.adapters_loadable, *pod.adapters_seen):
            self._base_of.setdefault(name, spec.model)

    # Lookups.

    def find(self, model: str) -> tuple[Pool, ModelId | None] | None:
        """The pool that serves `model`, and the adapter when it is one; None when nobody here ever did."""
        name = ModelId(model)
        pool = self.pools.get(name)
        if pool is not None:
            return pool, None
        base = self._base_of.get(name)
        return (self.pools[base], name) if base is not None else None

    def names(self) -> dict[ModelId, ModelId]:
        """Every servable name with its base model; a base model maps to itself."""
        return {**self._base_of, **{model: model for model, pool in self.pools.items() if pool.present}}

    def pod(self, id_: PodId) -> Pod | None:
        """The present incarnation of a pod; None when it is no longer listed."""
        return self._pods.get(id_)

    def pods(self) -> list[Pod]:
        """Every listed pod."""
        return list(self._pods.values())

    # Events.

    def scraped(self, id_: PodId, signals: Signals | None, now_s: float, *, own_at_start: int = 0) -> bool:
        """News of a pod; whether its engine turned out to have restarted."""
        pod = self._pods.get(id_)
        if pod is None:
            return False
        new = self.pools[pod.spec.model].scraped(pod, signals, now_s, own_at_start=own_at_start)
        self._pods[id_] = new
        if signals is not None and signals.adapters is not None:
            self._learn_names(new)
        return new is not pod

    def listed(self, id_: PodId, adapters: Iterable[ModelId]) -> None:
        """Adapters that the pod's own model list names: resident until the list says otherwise."""
        pod = self._pods.get(id_)
        if pod is not None:
            pod.list_adapters(frozenset(adapters))
            self._learn_names(pod)

    def missed(self, id_: PodId, now_s: float) -> None:
        """A scrape of the pod failed."""
        pod = self._pods.get(id_)
        if pod is not None:
            self.pools[pod.spec.model].missed(pod, now_s)

    def tick(self, now_s: float) -> None:
        """Once per scrape period."""
        for pool in self.pools.values():
            pool.tick(now_s)

    def warnings(self) -> list[str]:
        """Conditions an operator should see, each once: `signal_missing:kv_cache:POD`, `pod_stale:POD`, ..."""
        found = [f"picker_degraded:{p.mode.value}:{p.model}" for p in self.pools.values() if p.present and p.degraded]
        for pod in self._pods.values():
            if pod.state in (PodState.STALE, PodState.BARRED):
                found.append(f"pod_{pod.state.value}:{pod.spec.id}")
            if pod.signals is not None:
                found += [f"signal_missing:{name}:{pod.spec.id}" for name in pod.signals.missing]
        return found


def _moved(old: PodSpec, new: PodSpec) -> bool:
    """Whether the same id now means another endpoint, so that nothing known of it holds."""
    return (old.url, old.model, old.metrics_url) != (new.url, new.model, new.metrics_url)
