"""One concurrency counter as this replica sees it: the places it holds, a few more than it uses. Pure.

Claims are absolute ("I hold 7"), so a repeated or lost one does no harm, and they lapse, so the places of a replica
that died come back by themselves.
"""

from gir.admit.lease import AHEAD_SHARE, DENIED_S_MAX, DENIED_S_MIN, EXACT_MAX, Within
from gir.admit.ports import Claim, Claimed

CLAIM_TTL_S = 10.0
RENEW_S = 3.0


class SlotLease:
    """Places of one counter. `used` may exceed `held` only while the store is away or after a limit was lowered."""

    __slots__ = (
        "_confirmed_s", "_used_s", "denied_until_s", "free", "held", "key", "limit", "live", "local", "used", "waiting",
    )  # fmt: skip

    def __init__(self, key: str, limit: int, *, local: bool, now_s: float) -> None:
        self.key = key
        self.limit = limit
        self.local = local
        self.live = 1
        self.used = 0
        self.held = 0
        self.free = limit
        """Places nobody held when the store last answered."""
        self.waiting = 0
        self.denied_until_s = 0.0
        self._confirmed_s = now_s
        self._used_s = now_s

    def __repr__(self) -> str:
        return f"<SlotLease {self.key} {self.used} used, {self.held} held of {self.limit}>"

    @property
    def spare(self) -> int:
        """Places held ahead of need: few enough that those idle elsewhere are never missed."""
        if self.limit <= EXACT_MAX:
            return 0
        if self.local:
            return self.limit // 4  # nobody else wants them
        return int(AHEAD_SHARE * self.limit / self.live)

    def enter(self, now_s: float) -> None:
        """Use one place. The caller has made sure that it may."""
        self.used += 1
        self._used_s = now_s

    def leave(self, now_s: float) -> None:
        """Stop using one place."""
        self.used -= 1
        self._used_s = now_s

    def due(self, now_s: float) -> bool:
        """Whether the store should hear of this counter: places to give back, or a claim to renew."""
        surplus = self.held - self.used - self.waiting
        return surplus > self.spare or (self.held > 0 and now_s - self._confirmed_s >= RENEW_S)

    def claim(self, replica: str) -> Claim:
        """The question to put to the store."""
        want = self.used + self.waiting
        if want > 0:
            want += self.spare // 2
        return Claim(self.key, self.limit, replica, want, CLAIM_TTL_S)

    def claimed(self, claim: Claim, answer: Claimed, now_s: float) -> None:
        """Take in the store's answer."""
        self.held, self.free = answer.held, answer.free
        self._confirmed_s = now_s
        if answer.held < self.used + self.waiting and answer.held < claim.want:
            self.denied_until_s = now_s + DENIED_S_MIN

    def enters_alone(self, within: Within) -> bool:
        """Judge without the store: what is held, or this replica's share if that is more."""
        if within is Within.SHARE:
            return self.used < max(1, self.limit // self.live, self.held)
        return within is Within.NOTHING or self.used < self.limit

    def idle(self, now_s: float) -> bool:
        """Nothing held and nobody came for a while."""
        return self.used == self.held == self.waiting == 0 and now_s - self._used_s > 60.0 * DENIED_S_MAX
