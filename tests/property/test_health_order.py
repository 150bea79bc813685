"""F14: whatever the order of arrival and however often repeated, the state is that of the greatest (epoch, seq)."""

from hypothesis import given
from hypothesis import strategies as st

from gir.health.detector import SEQ_LAST, BeatDetector, Beats
from gir.health.registry import Registry
from gir.model.beat import AgentHello, BeatReport
from gir.model.ids import ClusterId, RegionId, TierName
from gir.model.policy import HealthPolicy, PolicySnapshot
from tests.support.fleet import pool

Message = tuple[int, int]
"""(epoch, seq): seq -1 is the Hello of the epoch, SEQ_LAST its Goodbye, anything else a beat."""

messages = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1, 0, 1, 2, 3, SEQ_LAST])), min_size=1, max_size=12)


@st.composite
def shuffles(draw: st.DrawFn) -> tuple[list[Message], list[Message]]:
    """A history and one arrival of it: shuffled, with duplicates."""
    history = draw(messages)
    repeated = history + draw(st.lists(st.sampled_from(history), max_size=12))
    return history, draw(st.permutations(repeated))


@given(shuffles())
def test_the_state_is_that_of_the_greatest_message(case: tuple[list[Message], list[Message]]) -> None:
    history, arrival = case
    detector = BeatDetector(HealthPolicy(), now_s=0.0)
    for epoch, seq in arrival:
        if seq == -1:
            detector.hello(epoch, 1.0)
        elif seq == SEQ_LAST:
            detector.goodbye(epoch, 1.0)
        else:
            detector.beat(epoch, seq, 1.0)
    epoch, seq = max(history)
    expected = {-1: Beats.UNHEARD, SEQ_LAST: Beats.GONE}.get(seq, Beats.FRESH)
    assert (detector.epoch, detector.seq, detector.state) == (epoch, seq, expected)


@given(st.permutations([(epoch, seq) for epoch in (1, 2) for seq in range(4)] * 2))
def test_the_published_numbers_are_those_of_the_greatest_beat(arrival: list[Message]) -> None:
    cluster = ClusterId("eu-1")
    registry = Registry(PolicySnapshot(), now_s=0.0, jitter=lambda: 0.5)
    hello = AgentHello(cluster=cluster, region=RegionId("eu"), url="http://eu", tier=TierName("spot"), epoch=1)
    registry.hello(hello, 0.0)
    for epoch, seq in arrival:
        slots = 10 * epoch + seq
        registry.beat(BeatReport(cluster=cluster, epoch=epoch, seq=seq, pools=(pool(slots=slots),)), 0.0)
    state = registry.view.clusters[0]
    assert (state.epoch, state.seq, state.pools["llama"].slots_total, state.weight) == (2, 3, 23, 1.0)
