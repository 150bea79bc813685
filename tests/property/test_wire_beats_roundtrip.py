"""Whatever we write we read back, and whatever arrives is read or refused, never anything else."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gir.model.beat import BeatReport, Condition
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId
from gir.wire import beats as wire
from tests.support.beats import hello

EU = ClusterId("eu-1")
NAMES = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12).map(ModelId)
COUNTS = st.integers(min_value=0, max_value=2**31)
RATES = st.floats(min_value=0.0, max_value=1e9)


def maybe(values: Any) -> Any:
    return st.none() | values


@st.composite
def pools(draw: Any) -> PoolState:
    slots, kv = draw(COUNTS), draw(maybe(COUNTS))
    return PoolState(
        model=draw(NAMES),
        adapters_resident=frozenset(draw(st.lists(NAMES, max_size=3))),
        adapters_loadable=frozenset(draw(st.lists(NAMES, max_size=3))),
        pods_ready=draw(COUNTS),
        pods_warming=draw(COUNTS),
        slots_total=slots,
        slots_free=draw(st.integers(min_value=0, max_value=slots)),
        running=draw(maybe(COUNTS)),
        waiting=draw(maybe(COUNTS)),
        waiting_tokens=draw(maybe(COUNTS)),
        kv_tokens_total=kv,
        kv_tokens_used=None if kv is None else draw(maybe(st.integers(min_value=0, max_value=kv))),
        prefill_tokens_per_s=draw(maybe(RATES)),
        decode_tokens_per_s=draw(maybe(RATES)),
        service_rate_per_s=draw(maybe(RATES)),
        ttft_p50_s=draw(maybe(RATES)),
        ttft_p95_s=draw(maybe(RATES)),
        error_rate=draw(maybe(st.floats(min_value=0.0, max_value=1.0))),
        context_tokens_max=draw(maybe(COUNTS)),
        cards=draw(st.dictionaries(NAMES, st.just('{"id":"x"}'), max_size=2)),
    )


REPORTS = st.builds(
    BeatReport,
    cluster=st.just(EU),
    epoch=st.integers(min_value=1, max_value=2**63),
    seq=st.integers(min_value=0, max_value=2**63),
    pools=st.lists(pools(), max_size=3, unique_by=lambda pool: pool.model).map(tuple),
    condition=st.sampled_from(Condition),
    warnings=st.lists(NAMES, max_size=3).map(tuple),
)


@pytest.mark.slow
@given(REPORTS)
def test_a_beat_arrives_as_it_was_sent(report: BeatReport) -> None:
    message = wire.parse_agent_message(wire.encode_beat(report).SerializeToString())
    assert not isinstance(message, wire.BeatRefused)
    assert wire.decode_beat(message.beat, cluster=EU) == report


@given(st.dictionaries(NAMES, NAMES, max_size=3), st.floats(min_value=0.0, max_value=1e6))
def test_a_hello_arrives_as_it_was_sent(labels: dict[str, str], price: float) -> None:
    sent = hello(labels=labels, price_per_slot_hour=price, zone="z", version="1")
    assert wire.decode_hello(wire.encode_hello(sent).hello) == sent


@pytest.mark.slow
@given(REPORTS, st.data())
def test_any_damage_to_the_bytes_is_read_or_refused(report: BeatReport, data: Any) -> None:
    sent = bytearray(wire.encode_beat(report).SerializeToString())
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        if sent:
            sent[data.draw(st.integers(min_value=0, max_value=len(sent) - 1))] = data.draw(st.integers(0, 255))
    message = wire.parse_agent_message(bytes(sent))
    if isinstance(message, wire.BeatRefused):
        return
    try:
        read = wire.decode_beat(message.beat, cluster=EU)
        wire.decode_hello(message.hello)
    except wire.BeatRefused:
        return
    assert all(pool.slots_free <= pool.slots_total for pool in read.pools)
