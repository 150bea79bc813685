"""Global limits: reserve before the work, settle by what it took, give back what failed.

The usual request is decided here and now from units in hand (`reserve_now`). Only when those run out does it wait for
one turn of the pump (`reserve`). While the store is away each replica judges alone, by the rule's outage policy.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence

import msgspec

from gir.admit.estimate import TokenEstimator
from gir.admit.lease import RateLease, Within
from gir.admit.ports import Census, LimitStore, LocalLimitStore
from gir.admit.pump import REPLICA_TTL_S, LimitObserver, Pump, SilentLimitObserver
from gir.admit.reservation import (
    HEADER_NAMES,
    LimitExceeded,
    Reservation,
    duration,
    explained,
    limit_headers,
    tightest_of,
    tokens_of,
    tokens_used,
)
from gir.admit.rules import Counters, Plan, RateUse, SlotUse
from gir.admit.slots import SlotLease
from gir.clock import Clock
from gir.model.ids import RequestId
from gir.model.policy import LimitRule
from gir.model.request import Criticality, InferenceRequest, Usage
from gir.net.render import header_lines
from gir.tasks import TaskSet

_LINES = {
    kind: header_lines([(limit, b"%d"), (remaining, b"%d"), (reset, b"%b")])
    for kind, (limit, remaining, reset) in HEADER_NAMES.items()
}
TURNS_MAX = 4
"""Turns of the pump a request waits at most; more only happen when others take what it was waiting for."""
SLOT_RETRY_S = 1.0


class Limiter:
    """Counts every request against every rule it matches; the tightest decides."""

    def __init__(
        self,
        rules: Sequence[LimitRule],
        store: LimitStore,
        *,
        clock: Clock,
        replica: str = "self",
        region: str = "",
        replicas_min: int = 1,
        observer: LimitObserver | None = None,
    ) -> None:
        """`replicas_min` is how many replicas to assume while the store has not told how many there are.

        `replica` names this one to people; a random part makes it unique, as processes of one host share their name.
        """
        self.estimator = TokenEstimator()
        self.overrides: Mapping[str, Mapping[str, int]] = {}
        """Numbers that operators set in place of the rules', by rule."""
        self._clock = clock
        self._store = store
        self._rules = tuple(rules)
        self._live = self._replicas_min = replicas_min
        self._absent = 0
        """Of the `_live`, those that fell silent: their share is theirs."""
        self._local = store if isinstance(store, LocalLimitStore) else None
        self._counters = Counters(rules, region=region, local=self._local is not None)
        self._counters.spread(replicas_min)
        self._open: dict[RequestId, Reservation] = {}
        self._pump = Pump(
            store,
            self._counters,
            replica=f"{replica}#{secrets.token_hex(4)}",
            clock=clock,
            observer=observer or SilentLimitObserver(),
            on_census=self._heard,
        )

    def __repr__(self) -> str:
        return f"<Limiter {len(self._rules)} rules, {len(self._open)} open, live {self._live}, {self._pump.breaker!r}>"

    def start(self, tasks: TaskSet) -> None:
        """Begin talking to the store."""
        _ = tasks.spawn(self._pump.run(), name="limits pump")

    def apply(self, rules: Sequence[LimitRule]) -> None:
        """Take over new rules; what has been counted under a rule's name stays counted."""
        self._rules = tuple(rules)
        self._counters.apply([overridden(rule, self.overrides.get(rule.name)) for rule in self._rules])

    # Reserve

    def reserve_now(self, request: InferenceRequest, now_s: float) -> Reservation | None:
        """Reserve from what is in hand; None when the store must be asked: then `await reserve(request)`.

        Raises LimitExceeded (429) naming the rule.
        """
        plan = self._counters.plan_of(request, now_s)
        held = self._open.get(request.request_id)
        if held is not None:
            return held
        units = self._units(plan, request)
        if self._local is None and not self._pump.breaker.up:
            return self._reserve_alone(request, plan, units, now_s)
        short = self._short(plan, units, now_s)
        if short:
            if self._local is None:
                return None
            self._draw_now(self._local, short, now_s)
            for use, missing in self._short(plan, units, now_s):
                raise self._refusal(use, missing, plan, now_s)
        return self._spend(request, plan, units, now_s)

    async def reserve(self, request: InferenceRequest) -> Reservation:
        """Reserve, waiting for the store as long as it answers; raises LimitExceeded."""
        for _ in range(TURNS_MAX):
            now_s = self._clock.monotonic_s()
            reservation = self.reserve_now(request, now_s)
            if reservation is not None:
                return reservation
            await self._wait(self._counters.plan_of(request, now_s), request, now_s)
        now_s = self._clock.monotonic_s()
        plan = self._counters.plan_of(request, now_s)
        units = self._units(plan, request)
        for use, missing in self._short(plan, units, now_s):
            raise self._refusal(use, missing, plan, now_s)
        return self._spend(request, plan, units, now_s)

    def _units(self, plan: Plan, request: InferenceRequest) -> list[int]:
        if not plan.tokens:
            return [1] * len(plan.rates)
        prompt, output = self.estimator.expected(request)
        # A request larger than the whole limit is reserved as the whole limit: it waits for an empty window instead
        # of being refused for ever, and is settled by what it really takes.
        return [
            min(tokens_of(use.rule, prompt, output), use.lease.rate.limit, use.lease.rate.burst)
            if use.kind == "tokens"
            else 1
            for use in plan.rates
        ]

    def _short(self, plan: Plan, units: list[int], now_s: float) -> list[tuple[RateUse | SlotUse, int]]:
        """Counters with too little in hand. Raises LimitExceeded for one that the store refused a moment ago."""
        short: list[tuple[RateUse | SlotUse, int]] = []
        for use, wanted in zip(plan.rates, units, strict=True):
            if use.lease.in_hand < wanted:
                if use.lease.denies(wanted, now_s):
                    raise self._refusal(use, wanted, plan, now_s)
                short.append((use, wanted))
        for slot in plan.slots:
            if slot.lease.used >= slot.lease.held:
                if now_s < slot.lease.denied_until_s:
                    raise self._refusal(slot, 1, plan, now_s)
                short.append((slot, 1))
        return short

    def _spend(self, request: InferenceRequest, plan: Plan, units: list[int], now_s: float) -> Reservation:
        spent: list[tuple[RateUse, int, int]] = []
        low = False
        for use, wanted in zip(plan.rates, units, strict=True):
            lease = use.lease
            spent.append((use, wanted, lease.spend(wanted, now_s)))
            low = low or (not lease.local and lease.low(now_s))
        if low:
            # All of them in one round trip: the others would run low soon after.
            for use in plan.rates:
                self._pump.refill(use.lease)
        for slot in plan.slots:
            slot.lease.enter(now_s)
        return self._opened(request, spent, plan.slots)

    def _opened(
        self, request: InferenceRequest, spent: list[tuple[RateUse, int, int]], slots: tuple[SlotUse, ...]
    ) -> Reservation:
        reservation = Reservation(request.request_id, request.model, request.prompt_bytes, spent, slots)
        if spent or slots:
            self._open[request.request_id] = reservation
        return reservation

    # Ask the store

    @staticmethod
    def _draw_now(store: LocalLimitStore, short: list[tuple[RateUse | SlotUse, int]], now_s: float) -> None:
        takes = [(use.lease, use.lease.draw(now_s, units)) for use, units in short if isinstance(use, RateUse)]
        slots = [use.lease for use, _ in short if isinstance(use, SlotUse)]
        for lease in slots:
            lease.waiting += 1
        claims = [lease.claim("self") for lease in slots]
        replies = store.exchange_now([take for _, take in takes], claims)
        for (rate, take), taken in zip(takes, replies.taken, strict=True):
            rate.drew(take, taken, now_s)
        for lease, claim, claimed in zip(slots, claims, replies.claimed, strict=True):
            lease.claimed(claim, claimed, now_s)
            lease.waiting -= 1

    async def _wait(self, plan: Plan, request: InferenceRequest, now_s: float) -> None:
        """Wait for one turn of the pump. Meanwhile every counter of the plan keeps what it has for this request."""
        units = self._units(plan, request)
        for use, wanted in self._short(plan, units, now_s):
            if isinstance(use, RateUse):
                self._pump.need(use.lease, wanted)
            else:
                self._pump.place(use.lease)
        held: list[tuple[RateLease | SlotLease, int]] = [(slot.lease, 1) for slot in plan.slots]
        held += [(use.lease, wanted) for use, wanted in zip(plan.rates, units, strict=True)]
        for lease, wanted in held:
            lease.waiting += wanted
        try:
            # Shielded: the turn is everybody's, and one client leaving must not cancel it.
            await asyncio.shield(self._pump.turn())
        finally:
            for lease, wanted in held:
                lease.waiting -= wanted

    def _heard(self, census: Census) -> None:
        live, absent = max(census.live, self._replicas_min - census.absent, 1), census.absent
        if (live + absent, absent) != (self._live, self._absent):
            self._live, self._absent = live + absent, absent
            self._counters.spread(self._live, absent, self._clock.monotonic_s() - REPLICA_TTL_S)

    # Judge alone

    def _reserve_alone(self, request: InferenceRequest, plan: Plan, units: list[int], now_s: float) -> Reservation:
        critical = request.criticality is Criticality.CRITICAL
        spent: list[tuple[RateUse, int, int]] = []
        for use, wanted in zip(plan.rates, units, strict=True):
            within = _within(use.rule, critical)
            stamp = within and use.lease.spend_alone(wanted, now_s, loss=self._pump.breaker.outages, within=within)
            if stamp is None:
                self._undo(spent, now_s)
                raise self._refusal(use, wanted, plan, now_s)
            spent.append((use, wanted, stamp))
        for slot in plan.slots:
            within = _within(slot.rule, critical)
            if within is None or not slot.lease.enters_alone(within):
                self._undo(spent, now_s)
                raise self._refusal(slot, 1, plan, now_s)
        for slot in plan.slots:
            slot.lease.enter(now_s)
        return self._opened(request, spent, plan.slots)

    @staticmethod
    def _undo(spent: list[tuple[RateUse, int, int]], now_s: float) -> None:
        for use, units, stamp in spent:
            use.lease.give_back(stamp, units, now_s)

    # Settle

    def settle(
        self, reservation: Reservation, usage: Usage | None, *, started: bool, own_doing: bool = False, now_s: float
    ) -> None:
        """Close `reservation` by what the request took. Calling it again does nothing.

        `started` is False when the client got no token: everything is given back, except that a request which came
        to nothing by the caller's `own_doing` still counts as one request. `usage` None with `started` leaves the
        estimate standing.
        """
        if reservation.settled:
            return
        reservation.settled = True
        self._open.pop(reservation.request_id, None)
        for use, units, stamp in reservation.spent:
            used = units
            if not started:
                used = units if own_doing and use.kind == "requests" else 0
            elif usage is not None and use.kind == "tokens":
                used = tokens_used(use.rule, usage)
            if used != units:
                use.lease.give_back(stamp, units - used, now_s)
                if self._local is None:
                    self._note(use.lease)
        for slot in reservation.slots:
            slot.lease.leave(now_s)
            if not slot.lease.local and slot.lease.due(now_s):
                self._note(slot.lease)
        if started and usage is not None:
            self.estimator.observe(reservation.model, reservation.prompt_bytes, usage)

    def _note(self, lease: RateLease | SlotLease) -> None:
        if self._local is None and self._pump.breaker.up:
            self._pump.note(lease)

    # Tell

    @staticmethod
    def lines(reservation: Reservation, now_s: float) -> bytes:
        """Header lines `x-ratelimit-*` for the answer of a request that was let in."""
        leases = tightest_of([use for use, _, _ in reservation.spent])
        return b"".join(
            [
                _LINES[kind] % (lease.rate.limit, lease.left, duration(lease.reset_at_s - now_s))
                for kind, lease in leases.items()
            ]
        )

    def _refusal(self, use: RateUse | SlotUse, units: int, plan: Plan, now_s: float) -> LimitExceeded:
        for other in plan.rates:
            other.lease.trim_surplus()
            if other.lease.owed:
                self._note(other.lease)
        rule = use.rule
        if isinstance(use, SlotUse):
            message = f"limit `{rule.name}`: {use.lease.limit} requests at once are running; wait for one to end"
            headers = limit_headers(plan.rates, now_s)
            return LimitExceeded(message, rule=rule, kind="concurrency", retry_after_s=SLOT_RETRY_S, headers=headers)
        retry_s = max(use.lease.retry_at_s - now_s, 0.0)
        asked = f" (this request asks for {units})" if use.kind == "tokens" else ""
        message = f"limit `{rule.name}`: {use.lease.rate.limit} {use.kind} per minute are used up{asked}"
        headers = limit_headers(plan.rates, now_s, refused=use.lease)
        return LimitExceeded(message, rule=rule, kind=use.kind, retry_after_s=retry_s, headers=headers)

    def explain(self, request: InferenceRequest) -> list[dict[str, object]]:
        """Every counter `request` would be counted in, and whether it has room, as far as this replica knows."""
        return explained(self._counters, request, *self.estimator.expected(request))

    @property
    def store_up(self) -> bool:
        """Whether the shared counters can be had; the one gauge."""
        return self._local is not None or self._pump.breaker.up

    def rows(self, now_s: float) -> list[dict[str, object]]:
        """Every counter this replica knows, fullest first, for `gir limits top` and the admin API."""
        rates: list[dict[str, object]] = [
            {
                "counter": lease.key,
                "limit": lease.rate.limit,
                "remaining": lease.left,
                "in_hand": lease.in_hand,
                "reset_s": round(max(0.0, lease.reset_at_s - now_s), 3),
            }
            for lease in self._counters.rates.values()
        ]
        slots: list[dict[str, object]] = [
            {"counter": lease.key, "limit": lease.limit, "remaining": lease.free, "in_hand": lease.held, "reset_s": 0.0}
            for lease in self._counters.slots.values()
        ]
        return sorted(rates + slots, key=lambda row: float(str(row["remaining"])) / float(str(row["limit"])))

    @property
    def rules(self) -> tuple[LimitRule, ...]:
        """Rules in force, overrides applied."""
        return self._counters.rules

    def heed(self, overrides: Mapping[str, Mapping[str, int]]) -> None:
        """Operators' numbers, by rule, hold in place of the policy's. What names no rule waits for one."""
        self.overrides = overrides
        self.apply(self._rules)

    def check(self, name: str, numbers: Mapping[str, int] | None) -> None:
        """Raise ValueError when there is no such rule, or it cannot have these numbers."""
        rule = next((rule for rule in self._rules if rule.name == name), None)
        if rule is None:
            raise ValueError(f"no limit is named {name!r}; `gir limits show` lists them")
        overridden(rule, numbers)

    async def close(self) -> None:
        """Give back units and places in hand, as far as the store answers. The task set ends the pump."""
        now_s = self._clock.monotonic_s()
        for rate in self._counters.rates.values():
            rate.trim(0)
            if rate.owed:
                self._note(rate)
        for slot in self._counters.slots.values():
            if slot.due(now_s):
                self._note(slot)
        if self._local is None and self._pump.breaker.up:
            await self._pump.exchange()
            await self._pump.leave()
        await self._store.close()


def _within(rule: LimitRule, critical: bool) -> Within | None:
    """What bounds a replica alone under `rule`; None: it lets nobody in."""
    if rule.on_outage == "open":
        return Within.NOTHING
    if critical:
        return Within.WHOLE
    return Within.SHARE if rule.on_outage == "share" else None


def overridden(rule: LimitRule, numbers: Mapping[str, int] | None) -> LimitRule:
    """`rule` with an operator's run-time numbers; raises ValueError when they are no numbers of a limit."""
    if not numbers:
        return rule
    try:
        return msgspec.convert({**msgspec.to_builtins(rule), **numbers}, LimitRule)
    except msgspec.MsgspecError as error:
        raise ValueError(f"limit {rule.name!r} cannot be changed so: {error}") from error
