"""LoRA slots of one engine: which adapters are in GPU memory, which are loading, which goes next."""


class AdapterSlots:
    """At most `slots` adapters at once; one that runs stays, the least recently used idle one makes room."""

    __slots__ = ("_holders", "_ready_at_s", "load_s", "slots")

    def __init__(self, slots: int, load_s: float) -> None:
        self.slots = slots
        self.load_s = load_s
        self._ready_at_s: dict[str, float] = {}  # insertion order is the order of use
        self._holders: dict[str, int] = {}

    @property
    def running(self) -> list[str]:
        """Adapters that running sequences use."""
        return list(self._holders)

    def resident(self, now_s: float) -> list[str]:
        """Adapters loaded by `now_s`, least recently used first."""
        return [name for name, ready_at_s in self._ready_at_s.items() if ready_at_s <= now_s]

    def take(self, name: str, now_s: float) -> bool:
        """Let one more sequence run with `name`. False while it loads, or while running adapters fill every slot.

        Asking for an absent adapter starts its load if there is (or can be made) room.
        """
        ready_at_s = self._ready_at_s.get(name)
        if ready_at_s is None:
            if not self._make_room(now_s):
                return False
            ready_at_s = now_s + self.load_s
            self._ready_at_s[name] = ready_at_s
        if ready_at_s > now_s:
            return False
        self._ready_at_s[name] = self._ready_at_s.pop(name)
        self._holders[name] = self._holders.get(name, 0) + 1
        return True

    def release(self, name: str) -> None:
        """One sequence that ran with `name` is done."""
        holding = self._holders[name] - 1
        if holding:
            self._holders[name] = holding
        else:
            del self._holders[name]

    def next_ready_s(self, now_s: float) -> float:
        """When the next load finishes; infinity when nothing loads."""
        return min((at_s for at_s in self._ready_at_s.values() if at_s > now_s), default=float("inf"))

    def clear(self) -> None:
        """Forget everything, as a restarted engine has."""
        self._ready_at_s.clear()
        self._holders.clear()

    def _make_room(self, now_s: float) -> bool:
        if len(self._ready_at_s) < self.slots:
            return True
        for name, ready_at_s in self._ready_at_s.items():
            if name not in self._holders and ready_at_s <= now_s:
                del self._ready_at_s[name]
                return True
        return False
