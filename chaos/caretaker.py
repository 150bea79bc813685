"""Who looks after a demo's clusters: one that was killed is started again after a while, and each step is told.

Killing a cluster is half of the story; how gently its traffic comes back is the other half.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol


class _Process(Protocol):
    @property
    def alive(self) -> bool:
        """Whether it runs (a frozen one does)."""


class _Cluster(Protocol):
    @property
    def processes(self) -> Sequence[_Process]:
        """Agent and engines."""

    @property
    def pids(self) -> Sequence[int]:
        """Theirs."""


class Site(Protocol):
    """The fleet, as far as it concerns the caretaker."""

    @property
    def clusters(self) -> Mapping[str, _Cluster]:
        """By name."""

    def start_cluster(self, name: str) -> None:
        """Start what does not run of a cluster."""


class Caretaker:
    """Call `look` now and then; it returns what there is to say."""

    def __init__(self, site: Site, return_s: float) -> None:
        self._site = site
        self._return_s = return_s
        self._killed_s: dict[str, float] = {}
        self._returning: set[str] = set()
        self._state: dict[str, str] = {}

    def look(self, states: Mapping[str, str], now_s: float) -> list[str]:
        """Notice who was killed, start who was away for `return_s`; `states` is what the router calls each cluster."""
        told: list[str] = []
        alive = {
            name for name, cluster in self._site.clusters.items() if all(process.alive for process in cluster.processes)
        }
        goes = "Its traffic goes to the others" if alive else "None is left: clients get 503 until one is back"
        for name, cluster in self._site.clusters.items():
            dead = name not in alive
            if dead and name not in self._killed_s:
                self._killed_s[name] = now_s
                told.append(
                    f"{name} was killed. {goes}; here it is started again in {self._return_s:.0f} s, as Kubernetes "
                    "would do."
                )
            elif dead and now_s - self._killed_s[name] >= self._return_s:
                self._site.start_cluster(name)
                self._returning.add(name)
                pids = " ".join(map(str, cluster.pids))
                told.append(f"{name} starts again (kill -9 {pids}); it must prove itself, then its share grows.")
            elif not dead:
                self._killed_s.pop(name, None)
            told += self._progress(name, states.get(name, ""))
        return told

    def _progress(self, name: str, state: str) -> list[str]:
        before = self._state.get(name)
        self._state[name] = state
        if name not in self._returning or state == before:
            return []
        if state == "ramping":
            return [f"{name} is ramping: a tenth of its share at first, all of it after 30 s."]
        if state == "healthy":
            self._returning.discard(name)
            return [f"{name} is healthy again. Try .venv/bin/gir drain {name} next, and then undrain"]
        return []
