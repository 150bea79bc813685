"""What a beat may say, and what is refused for which reason."""

import math
from typing import Any

import pytest

from gir.model.beat import Condition
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId
from gir.wire import beats as wire
from gir.wire.v1 import fleet_pb2 as pb
from tests.support.beats import hello, report

EU = ClusterId("eu-1")


def pool(**fields: Any) -> pb.Beat:
    return pb.Beat(epoch=1, seq=1, pools=[pb.Pool(**{"model": "m", **fields})])


def refusal(beat: pb.Beat) -> wire.BeatRefused:
    with pytest.raises(wire.BeatRefused) as caught:
        wire.decode_beat(beat, cluster=EU)
    return caught.value


def hello_refusal(**fields: Any) -> wire.BeatRefused:
    sent = wire.encode_hello(hello()).hello
    for name, value in fields.items():
        setattr(sent, name, value)
    with pytest.raises(wire.BeatRefused) as caught:
        wire.decode_hello(sent)
    return caught.value


def test_absent_signals_are_unknown_and_absent_capacity_is_zero() -> None:
    (state,) = wire.decode_beat(pool(), cluster=EU).pools
    assert state == PoolState(model=ModelId("m"))
    assert (state.slots_total, state.slots_free, state.running, state.kv_tokens_total, state.error_rate) == (
        0,
        0,
        None,
        None,
        None,
    )


def test_a_reported_zero_is_a_zero() -> None:
    (state,) = wire.decode_beat(pool(running=0, error_rate=0.0), cluster=EU).pools
    assert (state.running, state.error_rate) == (0, 0.0)


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"ttft_p95_s": math.nan}, "not_finite", "pools[0].ttft_p95_s"),
        ({"service_rate_per_s": math.inf}, "not_finite", "pools[0].service_rate_per_s"),
        ({"prefill_tokens_per_s": -math.inf}, "not_finite", "pools[0].prefill_tokens_per_s"),
        ({"decode_tokens_per_s": -0.5}, "negative", "pools[0].decode_tokens_per_s"),
        ({"ttft_p50_s": 1e12}, "out_of_range", "pools[0].ttft_p50_s"),
        ({"error_rate": 1.01}, "out_of_range", "pools[0].error_rate"),
        ({"slots_total": 4, "slots_free": 5}, "over_total", "pools[0].slots_free"),
        ({"slots_free": 1}, "over_total", "pools[0].slots_free"),
        ({"kv_tokens_total": 4, "kv_tokens_used": 5}, "over_total", "pools[0].kv_tokens_used"),
        ({"waiting_tokens": 2**63}, "out_of_range", "pools[0].waiting_tokens"),
        ({"model": ""}, "bad_name", "pools[0].model"),
        ({"model": "a\r\nb"}, "bad_name", "pools[0].model"),
        ({"model": "x" * 300}, "bad_name", "pools[0].model"),
        ({"adapters_resident": [""]}, "bad_name", "pools[0].adapters_resident"),
        ({"adapters_loadable": ["a"] * 5_001}, "too_many", "pools[0].adapters_loadable"),
    ],
)
def test_a_senseless_pool_is_refused_by_field(fields: dict[str, Any], reason: str, field: str) -> None:
    refused = refusal(pool(**fields))
    assert (refused.reason, refused.field) == (reason, field)
    assert str(refused).startswith(f"{field} is ")


def test_a_model_has_one_pool() -> None:
    beat = pb.Beat(epoch=1, seq=1, pools=[pb.Pool(model="m"), pb.Pool(model="m")])
    assert refusal(beat).reason == "duplicate"


def test_the_number_of_pools_is_bounded() -> None:
    beat = pb.Beat(epoch=1, seq=1, pools=[pb.Pool(model=f"m{number}") for number in range(wire.POOLS_MAX + 1)])
    assert refusal(beat).reason == "too_many"


def test_used_without_a_total_is_not_judged() -> None:
    (state,) = wire.decode_beat(pool(kv_tokens_used=5), cluster=EU).pools
    assert (state.kv_tokens_total, state.kv_tokens_used) == (None, 5)


@pytest.mark.parametrize("code", [0, 1, 99])
def test_unknown_conditions_are_no_error(code: int) -> None:
    beat = pb.Beat(epoch=1, seq=1)
    beat.ParseFromString(beat.SerializeToString() + bytes([4 << 3, code]))
    assert wire.decode_beat(beat, cluster=EU).condition is Condition.SERVING


def test_known_conditions_are_read() -> None:
    for condition in Condition:
        sent = wire.encode_beat(report(condition=condition)).beat
        assert wire.decode_beat(sent, cluster=EU).condition is condition


def test_warnings_are_cut_and_not_refused() -> None:
    beat = pb.Beat(epoch=1, seq=1, warnings=["w" * 1_000] * 100)
    warnings = wire.decode_beat(beat, cluster=EU).warnings
    assert (len(warnings), len(warnings[0])) == (wire.WARNINGS_MAX, 256)


def test_an_unusable_card_is_left_out_and_said() -> None:
    good = '{"id":"m","max_model_len":4096}'
    read = wire.decode_beat(
        pool(cards={"m": good, "a": "[]", "b": "{", "c": '{"x":"%s"}' % ("x" * 20_000)}), cluster=EU
    )
    assert read.pools[0].cards == {"m": good}
    assert sorted(read.warnings) == ["card_unusable:a", "card_unusable:b", "card_unusable:c"]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("cluster", "", "bad_name"),
        ("cluster", "a b", "bad_name"),
        ("cluster", "x" * 65, "bad_name"),
        ("region", "", "bad_name"),
        ("tier", "", "bad_name"),
        ("zone", "a\nb", "bad_name"),
        ("data_url", "", "bad_url"),
        ("data_url", "ftp://host", "bad_url"),
        ("data_url", "http://", "bad_url"),
        ("data_url", "http://host:99999", "bad_url"),
        ("data_url", "http://user:secret@host", "bad_url"),
        ("data_url", "http://host/?x=1", "bad_url"),
        ("data_url", "http://host\r\nx", "bad_url"),
        ("price_per_slot_hour", math.nan, "not_finite"),
        ("price_per_slot_hour", -1.0, "negative"),
        ("epoch", 0, "missing"),
    ],
)
def test_a_senseless_hello_is_refused_by_field(field: str, value: Any, reason: str) -> None:
    refused = hello_refusal(**{field: value})
    assert (refused.reason, refused.field) == (reason, field)


def test_labels_are_bounded() -> None:
    sent = wire.encode_hello(hello(labels={f"k{number}": "v" for number in range(33)})).hello
    with pytest.raises(wire.BeatRefused, match="labels"):
        wire.decode_hello(sent)


def test_a_message_that_cannot_be_read_is_a_value_not_an_exception() -> None:
    for data, reason in ((b"\xff\xff\xff", "unreadable"), (b"x" * (wire.MESSAGE_BYTES_MAX + 1), "too_large")):
        refused = wire.parse_agent_message(data)
        assert isinstance(refused, wire.BeatRefused)
        assert refused.reason == reason


def test_a_router_cannot_set_senseless_terms() -> None:
    welcome = pb.Welcome(beat_interval_ms=0, peers=["", "a:1", "b", "[::1]:7", "a b:1", "x:999999"])
    assert wire.decode_welcome(welcome) == wire.Welcome(0.1, ("a:1", "[::1]:7"))
    assert wire.decode_welcome(pb.Welcome(beat_interval_ms=10_000_000)).interval_s == 60.0


def test_directives_of_unknown_kinds_are_left_out() -> None:
    ack = wire.Ack(1, 2, "", (wire.Drain("upgrade"), wire.Limit(ModelId("m"), 5)))
    sent = wire.encode_ack(ack).ack
    sent.directives.add()
    sent.directives.add(limit=pb.Limit(concurrency_max=3))
    assert wire.decode_ack(sent) == ack
