"""Counters in this process: the embedded default, and the reference for the Redis adapter."""

from collections.abc import Sequence

from gir.admit.meter import Meter
from gir.admit.ports import Census, Claim, Claimed, Replies, Take, Taken
from gir.clock import Clock

SWEEP_EVERY = 4_096


class MemoryStore:
    """Implements `gir.admit.ports.LimitStore` without leaving the process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._meters: dict[str, tuple[Meter, float]] = {}
        """Meter of each rate counter and when nothing in it can matter any more."""
        self._places: dict[str, dict[str, tuple[int, float]]] = {}
        """Places held in each slot counter, by replica, and when each claim lapses."""
        self._seen: dict[str, float] = {}
        """When each replica falls silent if it is not heard again."""
        self._joined: dict[str, float] = {}
        """When each newcomer came, until it has taken the place of one that fell silent."""
        self._calls = 0

    def __repr__(self) -> str:
        return f"<MemoryStore {len(self._meters)} rates, {len(self._places)} slots>"

    def exchange_now(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        now_s = self._clock.monotonic_s()
        self._calls += 1
        if self._calls % SWEEP_EVERY == 0:
            self._sweep(now_s)
        return Replies([self._take(take, now_s) for take in takes], [self._claim(claim, now_s) for claim in claims])

    async def exchange(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        return self.exchange_now(takes, claims)

    async def connect(self) -> None:
        """Nothing to connect to."""

    async def census(self, replica: str, ttl_s: float, absent_s: float) -> Census:
        now_s = self._clock.monotonic_s()
        if absent_s == 0:
            self._forget(replica)
        else:
            if replica not in self._seen:
                self._joined[replica] = now_s
            self._seen[replica] = now_s + ttl_s
        absent = 0
        for silent, until_s in list(self._seen.items()):
            if until_s > now_s:
                continue
            heirs = (
                new
                for new, joined_s in self._joined.items()
                if self._seen[new] > now_s and _follows(new, joined_s, silent, until_s - ttl_s)
            )
            heir = next(heirs, None)
            if heir is not None or until_s + absent_s <= now_s:
                self._forget(silent)
                self._joined.pop(heir or silent, None)
            else:
                absent += 1
        return Census(len(self._seen) - absent, absent)

    def _forget(self, replica: str) -> None:
        self._seen.pop(replica, None)
        self._joined.pop(replica, None)

    async def close(self) -> None:
        """Nothing is held."""

    def _take(self, take: Take, now_s: float) -> Taken:
        held = self._meters.get(take.key)
        meter = held[0] if held is not None else Meter()
        self._meters[take.key] = (meter, now_s + 2 * take.rate.window_s)
        if take.owed:
            meter.correct(take.rate, take.owed, now_s)
        return meter.take(take.rate, take.need, take.want, now_s)

    def _claim(self, claim: Claim, now_s: float) -> Claimed:
        holders = self._places.setdefault(claim.key, {})
        for replica in [name for name, (_, until_s) in holders.items() if until_s <= now_s]:
            del holders[replica]
        others = sum(count for replica, (count, _) in holders.items() if replica != claim.replica)
        held = max(0, min(claim.want, claim.limit - others))
        if held > 0:
            holders[claim.replica] = (held, now_s + claim.ttl_s)
        else:
            holders.pop(claim.replica, None)
        return Claimed(held, max(0, claim.limit - others - held))

    def _sweep(self, now_s: float) -> None:
        self._meters = {key: held for key, held in self._meters.items() if held[1] > now_s}
        self._places = {key: holders for key, holders in self._places.items() if holders}


def _follows(newcomer: str, joined_s: float, silent: str, heard_s: float) -> bool:
    """Whether a newcomer has taken the place of one that was last heard at `heard_s`: it has its name."""
    return newcomer != silent and newcomer.rpartition("#")[0] == silent.rpartition("#")[0] and joined_s >= heard_s
