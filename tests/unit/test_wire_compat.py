"""Agents and routers of neighbouring versions understand one another, by bytes that are never regenerated."""

from pathlib import Path

import pytest

from gir.model.beat import Condition
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId
from gir.wire import beats as wire
from gir.wire.v1 import fleet_pb2 as pb
from tests.support.beats import hello, report

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"
EU = ClusterId("eu-1")
LLAMA = ModelId("llama")
POOL = PoolState(
    model=LLAMA,
    pods_ready=2,
    slots_total=16,
    slots_free=12,
    running=3,
    waiting=0,
    kv_tokens_total=1_000,
    kv_tokens_used=250,
    prefill_tokens_per_s=5_000.0,
)


def agent_message(name: str) -> pb.AgentMessage:
    message = wire.parse_agent_message((GOLDEN / f"{name}.bin").read_bytes())
    assert isinstance(message, pb.AgentMessage)
    return message


def router_message(name: str) -> pb.RouterMessage:
    return pb.RouterMessage.FromString((GOLDEN / f"{name}.bin").read_bytes())


@pytest.mark.parametrize("version", ["previous", "next"])
def test_a_hello_of_a_neighbouring_version_is_understood(version: str) -> None:
    read = wire.decode_hello(agent_message(f"hello.{version}").hello)
    labels = {"rack": "r7"} if version == "next" else {}
    assert read == hello(epoch=3, url="http://10.0.0.1:8101", price_per_slot_hour=1.5, labels=labels)


def test_a_beat_of_the_previous_version_is_understood() -> None:
    read = wire.decode_beat(agent_message("beat.previous").beat, cluster=EU)
    assert read == report(epoch=3, seq=7, pools=(POOL,))
    assert read.condition is Condition.SERVING


def test_a_beat_of_the_next_version_is_understood_as_far_as_it_is_known() -> None:
    read = wire.decode_beat(agent_message("beat.next").beat, cluster=EU)
    (pool,) = read.pools
    assert (pool.slots_free, pool.context_tokens_max, pool.cards) == (12, 4_096, {LLAMA: '{"id":"llama"}'})
    assert (read.condition, read.warnings) == (Condition.SERVING, ("something_new:x",))


def test_capacity_left_out_is_zero_and_never_infinite() -> None:
    (pool,) = wire.decode_beat(agent_message("beat-without-capacity.previous").beat, cluster=EU).pools
    assert (pool.slots_total, pool.slots_free, pool.running, pool.kv_tokens_total) == (0, 0, None, None)


@pytest.mark.parametrize("version", ["previous", "next"])
def test_a_goodbye_of_a_neighbouring_version_is_understood(version: str) -> None:
    goodbye = wire.decode_goodbye(agent_message(f"goodbye.{version}").goodbye)
    assert (goodbye.epoch, goodbye.seq) == (3, 9)


def test_an_unknown_kind_of_message_is_no_kind() -> None:
    assert agent_message("unknown-message.next").WhichOneof("body") is None


@pytest.mark.parametrize(
    ("version", "welcome"),
    [
        ("previous", wire.Welcome(2.0, ("10.0.0.1:7070",))),
        ("next", wire.Welcome(2.0, ("10.0.0.1:7070",), 12, "router-1")),
    ],
)
def test_a_welcome_of_a_neighbouring_version_is_understood(version: str, welcome: wire.Welcome) -> None:
    assert wire.decode_welcome(router_message(f"welcome.{version}").welcome) == welcome


@pytest.mark.parametrize(
    ("version", "directives"), [("previous", ()), ("next", (wire.Drain("upgrade"), wire.Limit(LLAMA, 4)))]
)
def test_an_ack_of_a_neighbouring_version_is_understood(version: str, directives: tuple[wire.Directive, ...]) -> None:
    assert wire.decode_ack(router_message(f"ack.{version}").ack) == wire.Ack(3, 7, "", directives)
