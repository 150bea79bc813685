"""What may be done to the operators' orders: pure steps from one document to the next.

A change is worked out again on the newest document whenever another router was faster, so each says by itself whether
it still makes sense there. Who decides by looking (start, promote) says what was seen, and is refused when that is no
longer so: two routers cannot both promote, and nobody promotes what a guard has just condemned. What takes work away
from somewhere (drain, abort) always makes sense.

`late` tells a change that it waited for the store to come back: what was said in the meantime then stands.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from gir.model.orders import (
    BYTES_MAX,
    CanaryOrder,
    CanaryStateName,
    ClusterOrder,
    IntentName,
    LimitOrder,
    Orders,
    encode,
    heeded,
    mark,
)
from gir.model.policy import CanaryRule, ClusterPolicy

T = TypeVar("T")
Dated = TypeVar("Dated", ClusterOrder, LimitOrder)
SPARE_BYTES = BYTES_MAX // 4
"""Room that no launch may take."""
Change = Callable[[Orders, bool], Orders]
_PLAIN = {"intent": "serve", "weight": 1.0}
"""What a cluster is that the policy says nothing of."""


class SupersededError(ValueError):
    """Somebody else was faster; the message says who, what and how to go on."""


class Voice(msgspec.Struct, frozen=True):
    """Who speaks, and when (Unix seconds)."""

    by: str
    at_unix_s: float


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A canary as the one who decides sees it."""

    rule: CanaryRule
    launched: bool
    """The policy does not have it: it lives in the document."""
    run: int
    state: CanaryStateName
    began_unix_s: float


def cluster(
    name: str,
    entry: ClusterPolicy | None,
    voice: Voice,
    *,
    intent: IntentName | None = None,
    weight: float | None = None,
) -> Change:
    """Want something of a cluster of which the policy says `entry`; what is None stays as it is."""

    def change(orders: Orders, late: bool) -> Orders:
        held = orders.clusters.get(name)
        if late and held is not None and held.at_unix_s > voice.at_unix_s:
            return orders
        before = heeded(held, entry)
        order = ClusterOrder(
            intent=intent or (before.intent if before else None),
            weight=before.weight if weight is None and before else weight,
            of=mark(entry),
            by=voice.by,
            at_unix_s=voice.at_unix_s,
        )
        plain = _PLAIN if entry is None else {"intent": entry.intent, "weight": entry.weight}
        idle = all(getattr(order, field) in (None, plain[field]) for field in plain)
        return msgspec.structs.replace(orders, clusters=_put(orders.clusters, name, None if idle else order))

    return change


def launch(rule: CanaryRule, voice: Voice) -> Change:
    """Start a rule that the policy does not have, or start such a one anew.

    Raises ValueError when too little room would be left for what must always be possible: to drain and to abort.
    """

    def change(orders: Orders, _: bool) -> Orders:
        held = orders.canaries.get(rule.name)
        order = CanaryOrder(
            rule=rule,
            of=mark(rule),
            run=1 + (held.run if held else 0),
            began_unix_s=voice.at_unix_s,
            by=voice.by,
            at_unix_s=voice.at_unix_s,
        )
        launched = _with_canary(orders, rule.name, order)
        if len(encode(launched)) > BYTES_MAX - SPARE_BYTES:
            raise ValueError(f"operators' orders are full: rule {rule.name} would not fit; remove old canaries")
        return launched

    return change


def start(seen: Seen, voice: Voice) -> Change:
    """Begin another run of a known rule. Raises SupersededError."""

    def change(orders: Orders, _: bool) -> Orders:
        held = _as_seen(orders, seen)
        run = 1 + max(seen.run, held.run)
        began = {"run": run, "state": "running", "stage": 0, "reason": "", "began_unix_s": voice.at_unix_s}
        return _say(orders, seen, voice, held, began)

    return change


def promote(seen: Seen, voice: Voice) -> Change:
    """Send everybody to the canary. Raises SupersededError, and ValueError for a rule without one."""

    def change(orders: Orders, _: bool) -> Orders:
        if len(seen.rule.targets) < 2:
            raise ValueError(f"rule {seen.rule.name} has one target: there is nothing to promote")
        held = _as_seen(orders, seen)
        return _say(orders, seen, voice, held, {"state": "promoted", "reason": f"promoted by {voice.by}"})

    return change


def abort(seen: Seen, voice: Voice, reason: str) -> Change:
    """Send everybody to the control, whatever has happened since."""

    def change(orders: Orders, late: bool) -> Orders:
        held = _held(orders, seen)
        if held is None or held.state == "aborted":
            return orders
        decided = held.state == "promoted" or held.run != seen.run
        if late and decided and held.at_unix_s > voice.at_unix_s:
            return orders
        return _say(orders, seen, voice, held, {"state": "aborted", "reason": reason or f"aborted by {voice.by}"})

    return change


def condemn(seen: Seen, voice: Voice, reason: str) -> Change:
    """A guard's abort: of the run it watched, while nobody else has decided about that."""

    def change(orders: Orders, _: bool) -> Orders:
        held = _held(orders, seen)
        if held is None or held.run != seen.run or held.state != "running":
            return orders
        return _say(orders, seen, voice, held, {"state": "aborted", "reason": reason})

    return change


def advance(seen: Seen, voice: Voice, stage: int) -> Change:
    """A plan has reached `stage` of the run on one router, so it has on all."""

    def change(orders: Orders, _: bool) -> Orders:
        held = _held(orders, seen)
        if held is None or held.run != seen.run or held.state != "running" or held.stage >= stage:
            return orders
        return _say(orders, seen, voice, held, {"stage": stage})

    return change


def remove(name: str, *, listed: bool) -> Change:
    """Take a launched rule away, or what was said of a rule that is gone. `listed`: the policy has it.

    Raises ValueError when there is nothing to take away here.
    """

    def change(orders: Orders, _: bool) -> Orders:
        if listed:
            raise ValueError(f"rule {name} is in the policy; take it out there")
        if name not in orders.canaries:
            raise ValueError(f"no canary called {name} was started by hand")
        return _with_canary(orders, name, None)

    return change


def limit(name: str, numbers: Mapping[str, int] | None, voice: Voice) -> Change:
    """Other numbers for one limit; None: the policy's again."""

    def change(orders: Orders, _: bool) -> Orders:
        order = None if numbers is None else LimitOrder(**numbers, by=voice.by, at_unix_s=voice.at_unix_s)
        return msgspec.structs.replace(orders, limits=_put(orders.limits, name, order))

    return change


def remember(known: Orders, *, lost: bool) -> Change:
    """What a router knows that a document has forgotten. `lost`: the store went back in time, so what is missing there
    was lost and not taken away; of two words about the same thing the later one stays.

    A verdict is known to be lost in any case: a run does not go back to running.
    """

    def change(orders: Orders, _: bool) -> Orders:
        canaries = dict(orders.canaries)
        for name, held in known.canaries.items():
            other = canaries.get(name)
            if other is None or other.of != held.of:
                missing = lost and (other is None or other.at_unix_s < held.at_unix_s)
            else:
                undone = held.run == other.run and held.state != "running" and other.state == "running"
                missing = undone or (lost and held.run > other.run)
            if missing:
                canaries[name] = held
        if not lost:
            return msgspec.structs.replace(orders, canaries=canaries)
        clusters, limits = _later(known.clusters, orders.clusters), _later(known.limits, orders.limits)
        return msgspec.structs.replace(orders, clusters=clusters, canaries=canaries, limits=limits)

    return change


def _later(known: Mapping[str, Dated], found: Mapping[str, Dated]) -> dict[str, Dated]:
    """Both, and of what stands in both the later word; what was found if they are of the same time."""
    newer = {
        name: order for name, order in known.items() if name not in found or order.at_unix_s > found[name].at_unix_s
    }
    return {**found, **newer}


def _held(orders: Orders, seen: Seen) -> CanaryOrder | None:
    """The order about the rule as seen; one that says it runs when there is none. None: the rule was removed."""
    held = orders.canaries.get(seen.rule.name)
    if held is not None and held.of == mark(seen.rule):
        return held
    if seen.launched:
        return None
    return CanaryOrder(of=mark(seen.rule), run=seen.run, began_unix_s=seen.began_unix_s, by="", at_unix_s=0.0)


def _as_seen(orders: Orders, seen: Seen) -> CanaryOrder:
    held = _held(orders, seen)
    name = seen.rule.name
    if held is None:
        raise SupersededError(f"rule {name} was removed or replaced meanwhile; look at `gir canary status`")
    if held.by and (held.run, held.state) != (seen.run, seen.state):
        why = f" ({held.reason})" if held.reason else ""
        raise SupersededError(
            f"rule {name} is {held.state} by {held.by} since{why}; look at `gir canary status {name}`, and say it "
            "again if you still mean it"
        )
    return held


def _say(orders: Orders, seen: Seen, voice: Voice, held: CanaryOrder, said: dict[str, Any]) -> Orders:
    order = msgspec.structs.replace(held, by=voice.by, at_unix_s=voice.at_unix_s, **said)
    return _with_canary(orders, seen.rule.name, order)


def _with_canary(orders: Orders, name: str, order: CanaryOrder | None) -> Orders:
    return msgspec.structs.replace(orders, canaries=_put(orders.canaries, name, order))


def _put(held: Mapping[str, T], name: str, value: T | None) -> dict[str, T]:
    """`held` with `name` set, or without it (None)."""
    others = {key: each for key, each in held.items() if key != name}
    return others if value is None else {**others, name: value}
