"""Defects of health: wrong clocks, lost grace, no way back."""

from typing import Any

from chaos.sim.bugs import Bug
from gir.health import quorum, registry
from gir.health.breaker import Breaker, Gate
from gir.health.detector import BeatDetector
from gir.health.pressure import Pressure
from gir.health.probe import ProbeState
from gir.health.record import ClusterRecord, Standing
from gir.health.registry import Registry
from gir.model.outcome import Attempt, AttemptResult

WALL_ZERO_S = 1_800_000_000.0
"""Where the simulated wall clocks begin."""


def _senders_clock(beat: Any) -> Any:
    def trust(detector: BeatDetector, epoch: int, seq: int, now_s: float) -> str:
        told: str = beat(detector, epoch, seq, now_s)
        # The boot epoch is the sender's clock in milliseconds, and each beat is about an interval later.
        sent_s = epoch / 1_000 - WALL_ZERO_S + seq * detector.policy.beat_interval_s
        detector.heard_s = min(now_s, sent_s)
        return told

    return trust


def _any_order(_: Any) -> Any:
    def accept(detector: BeatDetector, epoch: int, seq: int, now_s: float) -> str:
        detector.epoch, detector.seq, detector.heard_s = epoch, seq, now_s
        detector.state, detector.streak = type(detector.state).FRESH, detector.streak + 1
        return ""

    return accept


def _skip_ramp(stand: Any) -> Any:
    def jump(record: ClusterRecord, standing: Standing, now_s: float) -> None:
        stand(record, Standing.SERVING if standing is Standing.RAMPING else standing, now_s)

    return jump


def _count_everything(attempt: Any) -> Any:
    def count(self: Registry, ended: Attempt, now_s: float) -> None:
        if ended.result is AttemptResult.CLIENT_ERROR:
            ended = Attempt(
                cluster=ended.cluster,
                result=AttemptResult.UPSTREAM_FAULT,
                phase=ended.phase,
                started_s=ended.started_s,
                ended_s=ended.ended_s,
            )
        attempt(self, ended, now_s)

    return count


BUGS = (
    Bug(
        name="senders-clock",
        what="silence is measured from when the sender says it sent",
        target=BeatDetector,
        attribute="beat",
        replace=_senders_clock,
        finding="alarm",
        faults=frozenset({"skew", "crash"}),
    ),
    Bug(
        name="old-beats-believed",
        what="a late or repeated beat overwrites a newer one",
        target=BeatDetector,
        attribute="beat",
        replace=_any_order,
        test="tests.property.test_health_order:test_the_state_is_that_of_the_greatest_message",
    ),
    Bug(
        name="pauses-not-granted",
        what="a router that was stopped blames the clusters for the silence",
        target=Registry,
        attribute="_notice_gap",
        replace=lambda _: lambda *_: None,
        finding="alarm",
        faults=frozenset({"pause_router"}),
    ),
    Bug(
        name="ramp-skipped",
        what="a cluster that comes back gets all its work at once",
        target=ClusterRecord,
        attribute="_stand",
        replace=_skip_ramp,
        finding="ramp",
        faults=frozenset({"crash", "freeze"}),
    ),
    Bug(
        name="average-never-decays",
        what="a weight lowered by back-pressure never grows back",
        target=Pressure,
        attribute="factor",
        replace=lambda _: lambda pressure, _: pressure._factor,
        finding="liveness",
        faults=frozenset({"ill"}),
        seeds=80,
    ),
    Bug(
        name="probes-ignored",
        what="missed probes are not counted",
        target=ProbeState,
        attribute="missed",
        replace=lambda _: lambda _: None,
        finding="ladder",
        faults=frozenset({"freeze"}),
    ),
    Bug(
        name="half-open-for-ever",
        what="a probation that no request claims lasts for ever",
        target=Breaker,
        attribute="unclaimed",
        replace=lambda _: lambda *_: False,
        first=47,
        finding="liveness",
        seeds=300,
        faults=frozenset({"freeze", "ill", "cut_data"}),
    ),
    Bug(
        name="probation-for-all",
        what="a half-open breaker admits everybody",
        target=Breaker,
        attribute="claim",
        replace=lambda _: lambda breaker, _: breaker.gate is Gate.HALF_OPEN,
        test="tests.unit.test_health_breaker:test_probation_admits_exactly_one_and_a_success_closes",
    ),
    Bug(
        name="client-errors-counted",
        what="a caller's mistakes eject the cluster that pointed them out",
        target=Registry,
        attribute="attempt",
        replace=_count_everything,
        test="tests.unit.test_health_registry:test_client_errors_and_cancelled_attempts_never_count",
        arguments=(AttemptResult.CLIENT_ERROR,),
    ),
    Bug(
        name="last-candidate-ejected",
        what="the only cluster left for a model is taken out as well",
        target=registry,
        attribute="choose_last_resorts",
        replace=lambda _: lambda *_: [],
        test="tests.unit.test_health_observer:test_the_last_candidate_for_a_model_is_never_ejected",
    ),
    Bug(
        name="observer-never-doubted",
        what="a router that hears nobody takes everybody out",
        target=registry,
        attribute="judge",
        replace=lambda _: lambda *_: quorum.CALM,
        test="tests.unit.test_health_observer:"
        "test_everything_stale_at_once_keeps_the_last_good_view_and_ends_when_somebody_is_heard",
    ),
)
