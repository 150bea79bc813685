"""Breakers of the pools of one cluster: a model that fails must not cost the cluster its other models.

Where a cluster serves several models, an UPSTREAM_FAULT accuses the pool of the model that was asked for, for the
answer came over a working path. The successes of other models do not make up for it: with one model of three down, a
single breaker would see two successes for each failure and never open. A pool whose breaker is open is second choice,
as a SUSPECT cluster is: left alone while another cluster can serve the model, used when none can.

A breaker exists from the first failure of its pool until nothing bad is remembered of it.
"""

from gir.health.breaker import Breaker, Gate
from gir.model.ids import ModelId
from gir.model.outcome import AttemptResult
from gir.model.policy import HealthPolicy

_NONE: frozenset[ModelId] = frozenset()


class PoolBreakers:
    """By base model. Falsy while no pool has failed lately. Times are monotonic seconds."""

    __slots__ = ("_breakers", "_policy", "ejected", "on_trial")

    def __init__(self, policy: HealthPolicy) -> None:
        self._policy = policy
        self._breakers: dict[ModelId, Breaker] = {}
        self.ejected = _NONE
        """Models whose breaker is open."""
        self.on_trial = _NONE
        """Models whose breaker is half open: exactly one request may go, after `claim`."""

    def __bool__(self) -> bool:
        return bool(self._breakers)

    def __repr__(self) -> str:
        return f"<PoolBreakers {len(self.ejected)} ejected, {len(self.on_trial)} on trial of {len(self._breakers)}>"

    def use_policy(self, policy: HealthPolicy) -> None:
        """Judge by `policy` from now on."""
        self._policy = policy
        for breaker in self._breakers.values():
            breaker.policy = policy

    def success(self, model: ModelId, started_s: float, now_s: float) -> bool:
        """Count one good attempt on the pool of `model`. True when it closed its breaker."""
        breaker = self._breakers.get(model)
        if breaker is None or not breaker.success(started_s, now_s):
            return False
        self._note()
        return True

    def failure(self, model: ModelId, started_s: float, now_s: float, *, draw: float) -> bool:
        """Count one failed attempt. True when it opened the breaker; `draw` in [0, 1) sets the jitter."""
        breaker = self._breakers.get(model)
        if breaker is None:
            breaker = self._breakers[model] = Breaker(self._policy)
        if not breaker.failure(AttemptResult.UPSTREAM_FAULT, started_s, now_s, draw=draw):
            return False
        self._note()
        return True

    def inconclusive(self, model: ModelId, started_s: float) -> None:
        """An attempt ended without evidence: if it was a probation, the next request may try."""
        breaker = self._breakers.get(model)
        if breaker is not None:
            breaker.inconclusive(started_s)

    def claim(self, model: ModelId, now_s: float) -> bool:
        """Whether a request for `model` may go: always, unless its pool is on trial and another one is trying."""
        breaker = self._breakers.get(model)
        return breaker is None or breaker.gate is not Gate.HALF_OPEN or breaker.claim(now_s)

    def tick(self, now_s: float, offered: frozenset[ModelId]) -> None:
        """Let time act on the breakers; forget those of pools that are well, or gone (not `offered`)."""
        for model, breaker in list(self._breakers.items()):
            breaker.tick(now_s)
            if breaker.unclaimed(now_s):
                breaker.waive(now_s)
            if model not in offered or breaker.unblemished(now_s):
                del self._breakers[model]
        self._note()

    def line(self, now_s: float) -> str:
        """Why pools are left alone, in one line; '' when none is."""
        shut = [
            (model, breaker) for model, breaker in sorted(self._breakers.items()) if breaker.gate is not Gate.CLOSED
        ]
        return ", ".join(f"pool {model}: {_why(breaker, now_s)}" for model, breaker in shut)

    def _note(self) -> None:
        self.ejected = self._where(Gate.OPEN)
        self.on_trial = self._where(Gate.HALF_OPEN)

    def _where(self, gate: Gate) -> frozenset[ModelId]:
        return frozenset(model for model, breaker in self._breakers.items() if breaker.gate is gate) or _NONE


def _why(breaker: Breaker, now_s: float) -> str:
    if breaker.gate is Gate.OPEN:
        return f"breaker open {max(0.0, breaker.reopen_s - now_s):.1f}s more: {breaker.detail}"
    return f"breaker half open: {breaker.detail}"
