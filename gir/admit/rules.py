"""Which counters a request is counted in: limit rules against tenant, model, key and Region. Pure and cached."""

import hashlib
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import msgspec

from gir.admit.lease import RateLease
from gir.admit.ports import Rate
from gir.admit.slots import SlotLease
from gir.model.ids import ModelId, TenantId
from gir.model.policy import LimitRule
from gir.model.request import InferenceRequest

WINDOW_S = 60.0
PLANS_MAX = 50_000
COUNTERS_MAX = 50_000
"""Beyond it new values share counters: clients choose model names, so their number must not matter."""
SHARED = 1_024
"""Counters of one rule that such values share, by tenant: who floods is not to use up what others may."""
VALUE_CHARS_MAX = 120
_DIGEST_CHARS = 32


class RateUse(msgspec.Struct, frozen=True):
    """A rate counter a request is counted in, and how: `requests` (1) or `tokens` (weighted)."""

    lease: RateLease
    rule: LimitRule
    kind: str


class SlotUse(msgspec.Struct, frozen=True):
    """A concurrency counter a request takes a place of."""

    lease: SlotLease
    rule: LimitRule


class Plan(msgspec.Struct, frozen=True):
    """All counters of requests with the same tenant, model, name of it and key."""

    rates: tuple[RateUse, ...]
    slots: tuple[SlotUse, ...]
    tokens: bool
    """Whether any of them counts tokens."""


class Counters:
    """Every counter this replica has touched, and the plans that lead to them. Bounded by sweeping the idle ones."""

    def __init__(self, rules: Sequence[LimitRule], *, region: str, local: bool) -> None:
        self.rules = tuple(rules)
        self.rates: dict[str, RateLease] = {}
        self.slots: dict[str, SlotLease] = {}
        self._region = region
        self._local = local
        self._live = 1
        self._absent = (0, 0.0)
        """Replicas that fell silent, and since when their shares are kept for them."""
        self._plans: dict[tuple[TenantId, ModelId, ModelId, str], Plan] = {}
        self._sweep: Iterator[RateLease | SlotLease] = iter(())

    def plan_of(self, request: InferenceRequest, now_s: float) -> Plan:
        """Counters of `request`; the same for all requests with its tenant, model, name of it and key."""
        who = request.principal
        identity = (who.tenant, request.model, request.model_asked, who.key_id)
        plan = self._plans.get(identity)
        if plan is None:
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            plan = self._plans[identity] = self._plan(request, now_s)
        return plan

    def apply(self, rules: Sequence[LimitRule]) -> None:
        """Take over new rules. Counters of rules that stay keep what they have counted."""
        self.rules = tuple(rules)
        self._plans.clear()

    def spread(self, live: int, absent: int = 0, since_s: float = 0.0) -> None:
        """So many replicas share each limit from now on; `absent` of them fell silent at `since_s`."""
        self._live = live
        self._absent = (absent, min(since_s, self._absent[1]) if self._absent[0] else since_s)
        for rate in self.rates.values():
            rate.live = live
            rate.absent, rate.absent_since_s = self._absent
        for slot in self.slots.values():
            slot.live = live

    def sweep(self, now_s: float, count_max: int) -> list[RateLease | SlotLease]:
        """Look at up to `count_max` counters: forget the idle, return those the store should hear about."""
        found: list[RateLease | SlotLease] = []
        for _ in range(count_max):
            lease = next(self._sweep, None)
            if lease is None:
                self._sweep = iter([*self.rates.values(), *self.slots.values()])
                break
            idle = lease.idle(now_s)
            if isinstance(lease, SlotLease):
                if lease.due(now_s):
                    found.append(lease)
                elif idle and self.slots.pop(lease.key, None) is not None:
                    self._plans.clear()
            elif lease.owed or (lease.stale(now_s) and not lease.local):
                found.append(lease)
            elif idle and self.rates.pop(lease.key, None) is not None:
                self._plans.clear()
        return found

    def named(self, request: InferenceRequest) -> Iterator[tuple[LimitRule, str, str, int]]:
        """Rule, kind (`requests`, `tokens`, `concurrency`), name and limit of each counter `request` is counted in."""
        for rule in self.rules:
            if not matches(rule, request, self._region):
                continue
            full = len(self.rates) + len(self.slots) >= COUNTERS_MAX
            name = counter_name(rule, request, self._region)
            if full and not self._counts(name):
                name = _shared_name(rule, request)
            for kind, limit in (("requests", rule.requests_per_min), ("tokens", rule.tokens_per_min)):
                if limit is not None:
                    yield rule, kind, f"{name}:{kind}", limit
            if rule.concurrency_max is not None:
                yield rule, "concurrency", f"{name}:slots", rule.concurrency_max

    def _counts(self, name: str) -> bool:
        return f"{name}:requests" in self.rates or f"{name}:tokens" in self.rates or f"{name}:slots" in self.slots

    def _plan(self, request: InferenceRequest, now_s: float) -> Plan:
        rates: list[RateUse] = []
        slots: list[SlotUse] = []
        for rule, kind, key, limit in self.named(request):
            if kind == "concurrency":
                slots.append(SlotUse(self._slot(key, limit, now_s), rule))
            else:
                rates.append(RateUse(self._rate(key, limit, rule, now_s), rule, kind))
        return Plan(tuple(rates), tuple(slots), any(use.kind == "tokens" for use in rates))

    def _rate(self, key: str, limit: int, rule: LimitRule, now_s: float) -> RateLease:
        rate = Rate(limit, WINDOW_S, max(1, int(limit * rule.burst_s / WINDOW_S)))
        lease = self.rates.get(key)
        if lease is None:
            lease = self.rates[key] = RateLease(key, rate, local=self._local, now_s=now_s)
            lease.live = self._live
            lease.absent, lease.absent_since_s = self._absent
        lease.change(rate)
        return lease

    def _slot(self, key: str, limit: int, now_s: float) -> SlotLease:
        lease = self.slots.get(key)
        if lease is None:
            lease = self.slots[key] = SlotLease(key, limit, local=self._local, now_s=now_s)
            lease.live = self._live
        lease.limit = limit
        return lease


def matches(rule: LimitRule, request: InferenceRequest, region: str) -> bool:
    """Whether `rule` counts `request` at a router of `region`. A field left out matches anything."""
    who = request.principal
    return (
        (rule.tenant is None or rule.tenant == who.tenant)
        and (rule.model is None or rule.model == request.model or rule.model == request.model_asked)
        and (rule.key is None or rule.key == who.key_id)
        and (rule.region is None or rule.region == region)
    )


def counter_name(rule: LimitRule, request: InferenceRequest, region: str) -> str:
    """Name of the counter, the same on every replica: the rule and one value for each entry of `per`.

    Values are percent-encoded and bounded, because tenants choose some of them; what is cut off stays in a digest, so
    that no two share a counter.
    """
    who = request.principal
    values = {"tenant": who.tenant, "model": request.model, "key": who.key_id, "region": region}
    parts = [_bounded(quote(values[part], safe="")) for part in rule.per]
    if "key" in rule.per and "tenant" not in rule.per:
        # Issuers choose subjects, so credentials of two tenants may have one name.
        parts.append(_bounded(quote(who.tenant, safe="")))
    return ":".join([quote(rule.name, safe=""), *parts])


def _shared_name(rule: LimitRule, request: InferenceRequest) -> str:
    """Name of the counter for a value that gets none of its own."""
    if not {"tenant", "key"} & set(rule.per):
        return f"{quote(rule.name, safe='')}:*"
    digest = hashlib.sha256(request.principal.tenant.encode()).digest()
    return f"{quote(rule.name, safe='')}:*{int.from_bytes(digest[:4]) % SHARED}"


def _bounded(value: str) -> str:
    if len(value) <= VALUE_CHARS_MAX:
        return value
    digest = hashlib.sha256(value.encode()).hexdigest()[:_DIGEST_CHARS]
    return f"{value[: VALUE_CHARS_MAX - _DIGEST_CHARS - 1]}#{digest}"  # no encoded value has a '#'


def check_rules(rules: Sequence[LimitRule], *, region: str, shared: bool, processes: int) -> None:
    """Refuse rules that could not be enforced: ValueError with a line for each of `rule_faults`."""
    faults = list(rule_faults(rules, region=region, shared=shared, processes=processes))
    if faults:
        raise ValueError("\n".join(faults))


def rule_faults(rules: Sequence[LimitRule], *, region: str, shared: bool, processes: int) -> Iterator[str]:
    """What cannot be enforced in `rules`, naming field, value and fix.

    `shared` says whether the counters are in a store that all processes use; `processes` how many there are.
    """
    names: set[str] = set()
    for index, rule in enumerate(rules):
        field = f"policy.limits[{index}]"
        if rule.name in names:
            yield f"{field}.name is {rule.name!r}, which is used twice; names key the counters, rename one"
        names.add(rule.name)
        if rule.requests_per_min is rule.tokens_per_min is rule.concurrency_max is None:
            yield f"{field} ({rule.name}) limits nothing; set requests_per_min, tokens_per_min or concurrency_max"
        if not region and (rule.region is not None or "region" in rule.per):
            yield f"{field} ({rule.name}) is by Region, but this router has none; set its `region`"
    if rules and processes > 1 and not shared:
        yield (
            f"policy.limits has {len(rules)} rules with {processes} workers and store.kind memory: {processes} times "
            "each limit would get through; set store.kind to redis, or workers to 1"
        )
