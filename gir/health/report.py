"""Health in words: the reason of a state, the one line of the fleet, the rows of `/admin/clusters`."""

from collections.abc import Iterable
from typing import Any

from gir.health.breaker import Gate
from gir.health.detector import SEQ_LAST, Beats
from gir.health.events import Cause
from gir.health.probe import Probes
from gir.health.record import ClusterRecord, Standing
from gir.health.shown import status, weight
from gir.model.beat import Condition
from gir.model.cluster import Intent


def reason(record: ClusterRecord, now_s: float) -> str:
    """Why status and weight are what they are, in one line; '' when all is well."""
    well = record.standing is Standing.SERVING and record.pressure.calm and not record.pool_breakers
    if well and record.doors_open and not record.excused:
        return "" if record.pinned == 1.0 else _doors(record)
    parts = [_doors(record), _standing(record, now_s)]
    if record.excused and record.silent:
        parts.append(f"fail open: {_objection(record, record.objection, now_s)}")
    if record.last_resort:
        parts.append("last resort")
    if record.spared and record.standing is Standing.LOST:
        parts.append("lost with too many others to be written off")
    if (factor := record.pressure.factor(now_s)) < 1.0:
        parts.append(f"back-pressure x{factor:.2f}")
    if record.pressure.latest_s > now_s:
        models = ", ".join(model for model, _ in record.pressure.refusing(now_s))
        parts.append(f"asked for none{' of ' + models if models else ''} for {record.pressure.latest_s - now_s:.1f}s")
    parts.append(record.pool_breakers.line(now_s))
    return ", ".join(part for part in parts if part)


def _doors(record: ClusterRecord) -> str:
    if record.intent is not Intent.SERVE:
        return str(record.intent.value)
    if record.condition is not Condition.SERVING:
        return f"agent says {record.condition.value}"
    return "" if record.pinned == 1.0 else f"weight pinned to {record.pinned:g}"


def _standing(record: ClusterRecord, now_s: float) -> str:
    policy = record.policy
    match record.standing:
        case Standing.NEW if record.cause is Cause.NONE:
            if record.beats.state is not Beats.FRESH:
                return "no beat yet"
            return _proof(record) if record.names else "no slots yet"
        case Standing.NEW | Standing.LOST:
            return _objection(record, record.cause, now_s)
        case Standing.PROVING:
            return _proof(record)
        case Standing.HOLDING:
            return f"hold-down {max(0.0, record.hold_until_s - now_s):.1f}s (flap {record.flaps})"
        case Standing.RAMPING:
            return f"ramp {now_s - record.since_s:.1f}s of {policy.ramp_s:g}s"
        case _:
            return ""


def _proof(record: ClusterRecord) -> str:
    policy = record.policy
    beats = f"proving: beats {min(record.beats.streak, policy.recover_beats)}/{policy.recover_beats}"
    if not policy.probe:
        return beats
    return f"{beats}, probes {min(record.probes.streak, policy.recover_probes)}/{policy.recover_probes}"


def _objection(record: ClusterRecord, cause: Cause, now_s: float) -> str:
    match cause:
        case Cause.GOODBYE:
            return "said goodbye"
        case Cause.BEATS if not record.beats.streams and record.beats.state is Beats.SUSPECT:
            return f"beat stream lost, silent {record.beats.silence_s(now_s):.1f}s"
        case Cause.BEATS:
            return f"beats silent {record.beats.silence_s(now_s):.1f}s"
        case Cause.PROBE if record.probes.state is Probes.REFUSED:
            return "probe refused"
        case Cause.PROBE:
            return f"probes missed {record.probes.misses}"
        case _:
            return _breaker(record, now_s)


def _breaker(record: ClusterRecord, now_s: float) -> str:
    breaker = record.breaker
    origin = breaker.origin.value if breaker.origin else ""
    if breaker.gate is Gate.OPEN:
        return f"breaker open {max(0.0, breaker.reopen_s - now_s):.1f}s more: {origin} {breaker.detail}"
    return f"breaker half open: {origin} {breaker.detail}"


def line(records: Iterable[ClusterRecord], now_s: float, *, fail_open: bool) -> str:
    """The fleet in one line, `eu-1:HEALTHY w=1.00 | us-1:SUSPECT w=0.00 beats silent 7.2s`."""
    entries = []
    for record in records:
        share = weight(record, now_s, fail_open=fail_open)
        entries.append(
            f"{record.hello.cluster}:{status(record, now_s).name} w={share:.2f} {reason(record, now_s)}".rstrip()
        )
    return ("FAIL OPEN " if fail_open else "") + (" | ".join(entries) or "no clusters")


def row(record: ClusterRecord, now_s: float, *, fail_open: bool) -> dict[str, Any]:
    """One cluster as `/admin/clusters` shows it: JSON values only, durations in seconds, ages instead of times."""
    beats, probes, breaker, hello = record.beats, record.probes, record.breaker, record.hello
    return {
        "cluster": hello.cluster,
        "region": hello.region,
        "zone": hello.zone,
        "tier": record.tier,
        "url": hello.url,
        "version": hello.version,
        "status": status(record, now_s).value,
        "state": state(record, now_s),
        "weight": weight(record, now_s, fail_open=fail_open),
        "reason": reason(record, now_s),
        "standing": record.standing.value,
        "cause": record.cause.value,
        "since_s": round(now_s - record.since_s, 1),
        "intent": record.intent.value,
        "pinned_weight": record.pinned,
        "condition": record.condition.value,
        "last_resort": record.last_resort,
        "flaps": record.flaps,
        "beats": {
            "state": beats.state.value,
            "epoch": beats.epoch,
            "seq": None if beats.seq == SEQ_LAST else beats.seq,
            "age_s": round(beats.silence_s(now_s), 1),
            "streams": beats.streams,
        },
        "probes": {
            "state": probes.state.value,
            "misses": probes.misses,
            "rtt_ms": _ms(probes.rtt_s),
            "rtt_min_ms": _ms(probes.rtt_min_s),
        },
        "breaker": {
            "gate": breaker.gate.value,
            "ejections": breaker.ejections,
            "reopens_in_s": round(max(0.0, breaker.reopen_s - now_s), 1) if breaker.gate is Gate.OPEN else None,
            "detail": breaker.detail,
        },
        "pools_ejected": sorted(record.pool_breakers.ejected),
        "pools_on_trial": sorted(record.pool_breakers.on_trial),
        "backpressure": {
            "factor": round(record.pressure.factor(now_s), 2),
            "retry_in_s": round(max(0.0, record.pressure.latest_s - now_s), 1),
        },
        "models": sorted(record.names),
        "figures": _figures(record),
        "pods_ready": sum(pool.pods_ready for pool in record.pools.values()),
        "pods_warming": sum(pool.pods_warming for pool in record.pools.values()),
        "slots_total": sum(pool.slots_total for pool in record.pools.values()),
        "slots_free": sum(pool.slots_free for pool in record.pools.values()),
        "waiting": sum(pool.waiting or 0 for pool in record.pools.values()),
        "warnings": list(record.warnings),
    }


def state(record: ClusterRecord, now_s: float) -> str:
    """What a person wants to know at a glance: the status, or what keeps a cluster that reports from serving.

    An agent without ready pods refuses probes too, which makes its cluster suspect; its pods are the better word.
    """
    shown = status(record, now_s)
    if record.beats.state is not Beats.FRESH or record.cause not in (Cause.NONE, Cause.PROBE):
        return shown.value
    if record.condition is Condition.DRAINING:
        return "stopping"
    ready = sum(pool.pods_ready for pool in record.pools.values())
    coming = record.condition is Condition.WARMING or any(pool.pods_warming for pool in record.pools.values())
    if coming and (not ready or record.condition is Condition.WARMING):
        return "warming"
    return shown.value if ready else "no pods"


def _figures(record: ClusterRecord) -> str:
    """How much the numbers of its last beat are worth: `current`, `old` or `none`."""
    if record.beats.state is Beats.FRESH:
        return "current" if record.beats.streams else "old"  # a router that was paused excuses the loss
    return "old" if record.beats.state is Beats.SUSPECT else "none"


def _ms(duration_s: float | None) -> float | None:
    return None if duration_s is None else round(duration_s * 1000.0, 2)
