"""A new version that is bad, in clusters that serve both, in virtual time (F42)."""

from collections.abc import Callable

import msgspec
import pytest

from chaos.history import percentile
from chaos.sim.client import Told
from chaos.sim.pods import Ill, SimPod
from chaos.sim.world import World
from gir.model.policy import CanaryGuard, CanaryRule, CanaryTarget, RuleMatch
from gir.place.trial import CanaryEvent, Trial
from tests.support.catalogue import FAULT_S, MODEL, Lived, Load, live

pytestmark = pytest.mark.slow
NEXT = "llama-next"
RULE = CanaryRule(
    name="next",
    matches=(RuleMatch(model=MODEL),),
    targets=(CanaryTarget(model=MODEL, weight=80), CanaryTarget(model=NEXT, weight=20)),
    guard=CanaryGuard(),
)
USERS = 97
LASTS_S = 60.0
Harm = Callable[[SimPod], None]


def fails_half_the_time(pod: SimPod) -> None:
    pod.ill = Ill(kind="500", share=0.5)


def is_three_times_as_slow(pod: SimPod) -> None:
    pod.slow(3.0)


def is_sound(_: SimPod) -> None:
    """Nothing is wrong with it."""


class Canary:
    """A run in which the policy draws a fifth of the users to a new version from FAULT_S on."""

    def __init__(self, harm: Harm, load: Load) -> None:
        def begin(world: World) -> None:
            for cluster in world.clusters.values():
                for pod in cluster.pods.values():
                    if pod.spec.model == NEXT:
                        harm(pod)
            version = world._policy.version + 1
            world._policy = msgspec.structs.replace(world._policy, version=version, rewrites=(RULE,))
            world.routers[0].apply(world._policy)

        both = (MODEL, NEXT)
        self.lived: Lived = live(
            "ill",
            targets=(),
            lasts_s=LASTS_S,
            models=(both, both, (MODEL,)),
            load=msgspec.structs.replace(load, users=USERS),
            spoil=lambda world: world.at(FAULT_S, begin, world),
        )
        crowd, trial = self.lived.world.crowd, Trial(RULE, 0.0, [])
        assert crowd is not None
        drawn = {f"user-{n}" for n in range(USERS) if trial.draw(f"plain\0user-{n}".encode())[0]}
        self.drawn = [t for t in crowd.told if t.ask.user in drawn and t.started_s >= FAULT_S]
        self.others = [t for t in crowd.told if t.ask.user not in drawn]
        self.events: list[CanaryEvent] = self.lived.world.routers[0].stages.rewriter.take_events()

    def until(self, at_s: float) -> list[Told]:
        """Requests of drawn users that were sent before a moment."""
        return [t for t in self.drawn if t.started_s <= at_s]


def took_s(told: list[Told], share: float = 0.99) -> float:
    """Percentile of what whole answers took."""
    found = percentile([t.ended_s - t.started_s for t in told if t.ended_s is not None], share)
    assert found is not None, "nobody asked"
    return found


@pytest.mark.parametrize("rps", [4.0, 10.0, 30.0])
@pytest.mark.parametrize("harm", [fails_half_the_time, is_three_times_as_slow])
def test_f42_a_bad_canary_is_gone_within_30_s_and_50_requests_and_nobody_else_notices(harm: Harm, rps: float) -> None:
    run = Canary(harm, Load(rps=rps))
    (abort,) = run.events
    assert (abort.action, abort.by) == ("abort", "guard")
    sent = run.until(abort.at_s)
    assert len(sent) <= 50 and abort.at_s - FAULT_S <= 30.0
    before = [t for t in run.others if t.started_s < FAULT_S - 1.0]
    during = [t for t in run.others if t.started_s >= FAULT_S]
    if harm is fails_half_the_time:
        assert sum(t.status != 200 for t in sent) >= 3, "the fault hit nobody"
    else:
        assert took_s(sent, 0.5) >= 2.0 * took_s(during, 0.5), "the fault hit nobody"
    assert all(t.status == 200 and not t.broke for t in run.others)
    assert took_s(during) <= 1.1 * took_s(before)
    assert all(t.status == 200 for t in run.drawn if t.started_s > abort.at_s), "sent there still"
    assert run.lived.findings == []


def test_f42_a_sound_canary_stays_however_long_its_streams_go_on() -> None:
    run = Canary(is_sound, Load(tokens=150, streams_only=True))
    assert run.events == []
    assert run.lived.findings == []
