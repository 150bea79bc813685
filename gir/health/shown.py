"""How a cluster's record looks from outside: status, weight and the published state. Reads records, changes nothing."""

from typing import NamedTuple

from gir.health.breaker import Gate
from gir.health.detector import Beats
from gir.health.events import Cause
from gir.health.probe import Probes
from gir.health.ramp import freshness, ramp_share
from gir.health.record import WORKING, ClusterRecord, Standing
from gir.model.beat import AgentHello, Condition
from gir.model.cluster import ClusterState, ClusterStatus, Intent
from gir.model.ids import ModelId, TierName
from gir.model.outcome import AttemptResult


def status(record: ClusterRecord, now_s: float) -> ClusterStatus:
    """Status as the view shows it."""
    if record.standing is Standing.SERVING:
        return ClusterStatus.HEALTHY
    if record.standing is Standing.RAMPING or record.on_probation:
        return ClusterStatus.RAMPING
    if record.standing is Standing.NEW and record.cause is Cause.NONE and not record.last_resort:
        return ClusterStatus.UNKNOWN
    silenced = record.cause in (Cause.BEATS, Cause.PROBE) and record.beats.state is Beats.DEAD
    if record.last_resort or not (silenced or record.cause is Cause.GOODBYE):
        return ClusterStatus.SUSPECT
    return ClusterStatus.SUSPECT if _spared(record, now_s) else ClusterStatus.DEAD


def weight(record: ClusterRecord, now_s: float, *, fail_open: bool) -> float:
    """Share of its normal traffic it may have, 0 to 1 in steps of 0.01. A SUSPECT with weight is second choice."""
    if not record.doors_open:
        return 0.0
    share = record.pinned if record.pressure.calm else record.pinned * record.pressure.factor(now_s)
    if record.last_resort:
        pass  # old numbers or not, there is nobody to give the rest to
    elif record.standing in WORKING:
        if record.standing is Standing.RAMPING:
            share *= ramp_share(now_s - record.since_s, record.policy)
        if not fail_open:
            share *= freshness(record.beats.silence_s(now_s), record.policy)
    elif record.standing in (Standing.PROVING, Standing.HOLDING) or record.on_probation:
        share *= record.policy.ramp_floor
    elif record.standing is Standing.LOST and record.silent and _may_answer(record, now_s):
        # It helps out while the others have no room, less with each second.
        share *= freshness(record.beats.silence_s(now_s), record.policy)
    else:
        return 0.0
    return max(0.01, round(share, 2))


def backoff_until_s(record: ClusterRecord) -> float:
    """When it may be asked again: the end of its ejection or of its `Retry-After`."""
    ejected = record.cause is Cause.BREAKER and record.breaker.gate is Gate.OPEN and not record.last_resort
    return max(record.pressure.until_s, record.breaker.reopen_s) if ejected else record.pressure.until_s


def redispatch(record: ClusterRecord) -> bool:
    """Requests waiting there should be tried elsewhere: not after a goodbye or drain, where they are answered."""
    if record.cause is Cause.BREAKER:
        return record.breaker.origin is AttemptResult.LOCAL_FAULT
    return record.cause in (Cause.BEATS, Cause.PROBE) and record.condition is not Condition.DRAINING


def unreachable(record: ClusterRecord, now_s: float) -> bool:
    """Streams that fall silent there have ended. The path must be to blame, not only beats, which do not travel it;
    and where so many fell together that the fault may be the observer's, its verdict waits."""
    if record.standing is not Standing.LOST or record.excused or _spared(record, now_s):
        return False
    if record.policy.probe:
        return record.probes.state in (Probes.MISSED, Probes.REFUSED)
    return record.beats.state is Beats.DEAD


class Look(NamedTuple):
    """Everything the published state is made of, cheap to compare."""

    status: ClusterStatus
    weight: float
    pressure: float
    standing: Standing
    cause: Cause
    backoff_until_s: float
    refusing: tuple[tuple[str, float], ...]
    intent: Intent
    last_resort: bool
    on_probation: bool
    unreachable: bool
    pools_ejected: frozenset[ModelId]
    pools_on_trial: frozenset[ModelId]
    epoch: int
    seq: int
    rtt_s: float | None
    tier: TierName
    hello: AgentHello


def look_of(record: ClusterRecord, now_s: float, *, fail_open: bool) -> Look:
    """How the cluster looks now."""
    beats = record.beats
    return Look(
        status(record, now_s),
        weight(record, now_s, fail_open=fail_open),
        1.0 if record.pressure.calm else round(record.pressure.factor(now_s), 2),
        record.standing,
        record.cause,
        backoff_until_s(record),
        () if record.pressure.calm else record.pressure.refusing(now_s),
        record.intent,
        record.last_resort,
        record.on_probation,
        unreachable(record, now_s),
        record.pool_breakers.ejected,
        record.pool_breakers.on_trial,
        beats.epoch,
        beats.seq,
        record.rtt_s,
        record.tier,
        record.hello,
    )


def state_of(record: ClusterRecord, look: Look, reason: str) -> ClusterState:
    """The cluster as the view shows it."""
    hello = record.hello
    return ClusterState(
        id=hello.cluster,
        region=hello.region,
        zone=hello.zone,
        tier=look.tier,
        price_per_slot_hour=hello.price_per_slot_hour,
        url=hello.url,
        status=look.status,
        intent=look.intent,
        weight=look.weight,
        pressure=look.pressure,
        pools=record.pools,
        rtt_s=look.rtt_s,
        beat_at_s=record.beat_s,
        epoch=look.epoch,
        seq=max(0, look.seq),
        backoff_until_s=look.backoff_until_s,
        refusing=dict(look.refusing),
        unreachable=look.unreachable,
        pools_ejected=look.pools_ejected,
        pools_on_trial=look.pools_on_trial,
        probation=look.on_probation,
        reason=reason,
        labels=hello.labels,
    )


def _spared(record: ClusterRecord, now_s: float) -> bool:
    return record.spared and now_s - record.lost_s < record.policy.failover_bound_s


def _may_answer(record: ClusterRecord, now_s: float) -> bool:
    """Nothing is known against its data path, or so many are silent that what is known is in doubt."""
    if record.breaker.gate is not Gate.CLOSED:
        return False
    path_unblamed = record.beats.state is Beats.SUSPECT and record.probes.state is not Probes.MISSED
    return path_unblamed or _spared(record, now_s)
