"""Who is sick, the fleet or the observer? Judged over all clusters at once, before any of them loses its work.

Silence has two explanations: the cluster is gone, or this router cannot hear. The more clusters fall silent at the same
time, the likelier the second. Only silence is judged here (missing beats, missed probes, broken streams); a refused
connection or a goodbye is the cluster's own word, and the breaker speaks of answers, so neither is in doubt.

- Nobody is heard any more, and some fell silent within one window: *fail open*. Those keep the state they had, and
  their breakers, until somebody is heard again. Then all get the time of a normal detection to speak up.
- More than `mass_ejection_share` fell silent within one window, but others are heard: the observer hears, so new work
  goes elsewhere at once (SUSPECT), but nobody is written off (DEAD) before `failover_bound_s`: while the survivors have
  no room, the suspects are still tried.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gir.health.record import ClusterRecord
from gir.model.ids import ClusterId, ModelId
from gir.model.policy import HealthPolicy


class Member(msgspec.Struct, frozen=True):
    """One cluster that has served and should be serving."""

    cluster: ClusterId
    silent_since_s: float | None
    """When silence made it lost; None while it is heard."""


class Judgement(msgspec.Struct, frozen=True):
    """What the fleet as a whole says."""

    fail_open: bool = False
    recent: frozenset[ClusterId] = frozenset()
    """Clusters that fell silent together, if they were too many to be believed; empty otherwise."""


CALM = Judgement()


def judge(members: Sequence[Member], policy: HealthPolicy) -> Judgement:
    """Judge the silent against the heard. Losses within `dead_after_s` of the latest one count as one event."""
    silent = [(member.silent_since_s, member.cluster) for member in members if member.silent_since_s is not None]
    if not silent:
        return CALM
    heard = len(members) - len(silent)
    latest_s = max(since_s for since_s, _ in silent)
    recent = frozenset(cluster for since_s, cluster in silent if latest_s - since_s <= policy.dead_after_s)
    if not heard:
        return Judgement(fail_open=True, recent=recent)
    # Two at least: the loss of one cluster is a fault of that cluster, even in a fleet of one and a half.
    if len(recent) >= 2 and len(recent) / (len(recent) + heard) > policy.mass_ejection_share:
        return Judgement(recent=recent)
    return CALM


def choose_last_resorts(records: Iterable[ClusterRecord], policy: HealthPolicy, now_s: float) -> list[ClusterRecord]:
    """Mark who must stay usable because nobody is left to serve one of its models; return whose mark has changed.

    All that were heard of within `dead_after_s` of the latest: sending everything to one of many that fail alike
    would finish it. Those that said goodbye or refuse connections are gone and no resort, and neither is one that no
    probe and no request reaches, until a probe does or its ejection is over.
    """
    served: set[ModelId] = set()
    left: list[ClusterRecord] = []
    marked: list[ClusterRecord] = []
    for record in records:
        if record.working:
            served |= record.names
        elif record.doors_open and record.doubtful and not record.pathless:
            left.append(record)
        if record.last_resort:
            marked.append(record)
    orphans: dict[ModelId, list[ClusterRecord]] = {}
    for record in left:
        for name in record.names - served:
            orphans.setdefault(name, []).append(record)
    chosen: dict[ClusterId, ClusterRecord] = {}
    for candidates in orphans.values():
        latest_s = max(candidate.alive_s(now_s) for candidate in candidates)
        for candidate in candidates:
            if latest_s - candidate.alive_s(now_s) <= policy.dead_after_s:
                chosen[candidate.hello.cluster] = candidate
    turned = [record for record in marked if record.hello.cluster not in chosen]
    turned += [record for record in chosen.values() if not record.last_resort]
    for record in turned:
        record.last_resort = not record.last_resort
    return turned
