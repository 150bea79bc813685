"""Which cluster a session was last sent to: a hint, never a promise."""

from gir.model.ids import ClusterId


class Sessions:
    """Bounded memory in two generations: touched entries live on in the young one, the old one is dropped whole."""

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, sessions_max: int) -> None:
        self._half = max(1, sessions_max // 2)
        self._young: dict[int, ClusterId] = {}
        self._old: dict[int, ClusterId] = {}

    def get(self, key: int) -> ClusterId | None:
        """Cluster of the session's last request, if it is remembered."""
        return self._young.get(key) or self._old.get(key)

    def put(self, key: int, cluster: ClusterId) -> None:
        """Remember where the session's request went."""
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
        self._young[key] = cluster

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __repr__(self) -> str:
        return f"<Sessions {len(self)} of {2 * self._half}>"
