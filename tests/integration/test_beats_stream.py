"""Beats over real gRPC: who may report, what is refused, what a lost stream means, and who finds whom."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest

from gir.model.ids import ClusterId, ModelId
from gir.wire import beats as wire
from gir.wire.beat_transport import CLIENT_OPTIONS, METHOD
from gir.wire.v1 import fleet_pb2 as pb
from tests.support.beats import Log, Router, agent, hello, report
from tier1_agent import beat_link
from tier1_agent.beat_link import Backoff


async def until(condition: Callable[[], Any], timeout_s: float = 5.0) -> None:
    """Wait for `condition`; fails with a timeout."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    running = Router()
    await running.start()
    yield running
    await running.server.close(0)


class RawAgent:
    """Speaks the protocol by hand, bad manners included."""

    def __init__(self, address: str, token: str = "token-eu") -> None:
        self.channel = grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        method = self.channel.stream_stream(METHOD, response_deserializer=pb.RouterMessage.FromString)
        self.call = method(metadata=(("authorization", f"Bearer {token}"),))

    async def ask(self, message: pb.AgentMessage | bytes) -> pb.RouterMessage:
        data = message if isinstance(message, bytes) else message.SerializeToString()
        await self.call.write(data)
        async with asyncio.timeout(5.0):
            reply: pb.RouterMessage = await self.call.read()
        return reply

    async def greet(self, **changes: Any) -> pb.RouterMessage:
        return await self.ask(wire.encode_hello(hello(**changes)))

    async def refused(self, message: pb.AgentMessage | bytes | None = None) -> tuple[grpc.StatusCode, str]:
        """Status with which the stream ends, after `message` if one is given."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            if message is not None:
                await self.ask(message)
        async with asyncio.timeout(5.0):
            return await self.call.code(), await self.call.details()


@pytest.fixture
async def raw(router: Router) -> AsyncIterator[Callable[..., RawAgent]]:
    agents: list[RawAgent] = []

    def open_one(token: str = "token-eu") -> RawAgent:
        agents.append(RawAgent(router.address, token))
        return agents[-1]

    yield open_one
    for one in agents:
        one.call.cancel()
        await one.channel.close()


def count(family: Any, *labels: str) -> float:
    value: float = family.child(*labels).value
    return value


async def test_an_agent_is_welcomed_and_its_beats_arrive_in_order(router: Router) -> None:
    client = agent([router.address])
    client.start()
    await until(lambda: router.sink.kinds().count("beat") >= 3)
    await client.close()
    beats = [value for kind, value in router.sink.calls if kind == "beat"]
    assert router.sink.kinds()[0] == "hello"
    assert [beat.seq for beat in beats] == sorted({beat.seq for beat in beats})
    assert msgspec.structs.replace(beats[0], seq=1) == report()


async def test_goodbye_is_not_a_lost_stream(router: Router) -> None:
    client = agent([router.address])
    client.start()
    await until(lambda: router.sink.kinds().count("beat") >= 1)
    await client.close("upgrade")
    await until(lambda: not router.service._streams)
    assert router.sink.calls[-1] == ("goodbye", ("eu-1", 1))
    assert "lost" not in router.sink.kinds()


async def test_a_broken_stream_is_reported_at_once(router: Router, raw: Callable[..., RawAgent]) -> None:
    one = raw()
    await one.greet()
    one.call.cancel()
    await until(lambda: "lost" in router.sink.kinds(), 1.0)
    assert router.sink.calls[-1] == ("lost", (ClusterId("eu-1"), 1))
    assert count(router.metrics.beat_streams, "eu-1") == 0


async def test_directives_reach_the_agent_and_end_with_the_stream(router: Router) -> None:
    heard: list[tuple[wire.Directive, ...]] = []
    client = agent([router.address], on_directives=lambda _, wishes: heard.append(wishes))
    router.directives = (wire.Drain("upgrade"), wire.Limit(ModelId("llama"), 4))
    client.start()
    await until(lambda: heard)
    await client.close()
    assert heard == [router.directives, ()]


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_an_unknown_credential_is_refused(router: Router, raw: Callable[..., RawAgent], token: str) -> None:
    code, details = await raw(token).refused()
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "credential" in details
    assert router.sink.calls == []
    assert count(router.metrics.hellos_refused, "unauthenticated") == 1


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (wire.encode_hello(hello("us-1")), "wrong_cluster"),
        (wire.encode_hello(hello(url="gopher://x")), "bad_url"),
        (wire.encode_beat(report()), "no_hello"),
        (b"\xff\xff", "unreadable"),
    ],
)
async def test_a_bad_hello_is_refused_with_its_reason(
    router: Router, raw: Callable[..., RawAgent], first: pb.AgentMessage | bytes, reason: str
) -> None:
    code, details = await raw().refused(first)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details.startswith(f"{reason}: ")
    assert router.sink.calls == []
    assert count(router.metrics.hellos_refused, reason) == 1


async def test_a_hello_the_registry_does_not_believe_ends_the_stream(
    router: Router, raw: Callable[..., RawAgent]
) -> None:
    router.sink.refuse_hello = "epoch 1 is older than 9"
    code, details = await raw().refused(wire.encode_hello(hello()))
    assert (code, details) == (grpc.StatusCode.FAILED_PRECONDITION, "old_epoch: epoch 1 is older than 9")
    assert count(router.metrics.rivals, "eu-1") == 1
    assert "lost" not in router.sink.kinds()


BAD = wire.encode_beat(report(seq=2))
BAD.beat.pools[0].ttft_p95_s = math.nan


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (BAD, "not_finite"),
        (b"\xff\xff\xff", "unreadable"),
        (b"x" * (10 * 1024 * 1024), "too_large"),
        (wire.encode_hello(hello()), "second_hello"),
        (wire.encode_beat(report(epoch=2)), "wrong_epoch"),
    ],
)
async def test_a_bad_beat_is_refused_and_the_last_good_one_kept(
    router: Router, raw: Callable[..., RawAgent], message: pb.AgentMessage | bytes, reason: str
) -> None:
    one = raw()
    await one.greet()
    assert (await one.ask(wire.encode_beat(report()))).ack.refused == ""
    answer = await one.ask(message)
    assert answer.ack.refused != ""
    assert router.sink.kinds() == ["hello", "beat"]
    assert count(router.metrics.beats_refused, "eu-1", reason) == 1
    assert (await one.ask(wire.encode_beat(report(seq=3)))).ack.refused == ""
    assert router.sink.last_beat().seq == 3


async def test_an_agent_that_keeps_sending_bad_beats_is_flagged(router: Router, raw: Callable[..., RawAgent]) -> None:
    one = raw()
    await one.greet()
    for _ in range(2):
        await one.ask(BAD)
    assert count(router.metrics.beats_flagged, "eu-1") == 0
    await one.ask(BAD)
    assert count(router.metrics.beats_flagged, "eu-1") == 1
    assert router.log.events().count("an agent keeps sending bad beats") == 1


async def test_a_beat_the_registry_ignores_is_answered_with_the_reason(
    router: Router, raw: Callable[..., RawAgent]
) -> None:
    router.sink.ignore_beat = "(1, 1) is not after (1, 5)"
    one = raw()
    await one.greet()
    answer = await one.ask(wire.encode_beat(report()))
    assert (answer.ack.seq, answer.ack.refused) == (1, "(1, 1) is not after (1, 5)")
    assert count(router.metrics.beats, "eu-1", "ignored") == 1


async def test_an_unknown_kind_of_message_is_no_error(router: Router, raw: Callable[..., RawAgent]) -> None:
    one = raw()
    await one.greet()
    answer = await one.ask(bytes([15 << 3 | 2, 0]))
    assert (answer.WhichOneof("body"), answer.ack.refused) == ("ack", "")


async def test_a_newer_agent_takes_the_cluster_over(router: Router, raw: Callable[..., RawAgent]) -> None:
    old, new = raw(), raw()
    await old.greet(epoch=1)
    await new.greet(epoch=2)
    await old.ask(wire.encode_beat(report(epoch=1)))
    code, details = await old.refused()
    assert (code, details) == (grpc.StatusCode.ABORTED, "another agent of this cluster has a higher epoch")
    assert (await new.ask(wire.encode_beat(report(epoch=2)))).ack.refused == ""
    assert count(router.metrics.rivals, "eu-1") == 1


async def test_streams_of_one_cluster_are_bounded(router: Router, raw: Callable[..., RawAgent]) -> None:
    for _ in range(8):
        await raw().greet()
    assert (await raw().refused(wire.encode_hello(hello())))[1].startswith("too_many_streams")


@pytest.mark.slow
async def test_a_restarted_router_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "LOST_S", 0.2)
    first, second = Router(), Router()
    address = await first.start()
    client = agent([address])
    client.start()
    await until(lambda: client.links_up == 1)
    await first.server.close(0)
    await until(lambda: client.links_up == 0, 2.0)
    await second.start(int(address.rpartition(":")[2]))
    await until(lambda: client.links_up == 1)
    await until(lambda: second.sink.kinds()[:2] == ["hello", "beat"])
    await client.close()
    await second.server.close(0)


async def test_an_agent_lives_without_any_router() -> None:
    log = Log()
    client = agent(["127.0.0.1:1"], log=log)
    client.start()
    await until(lambda: "unavailable" in client.state()[0].error)
    assert client.links_up == 0
    client.beat_now()
    await client.close()
    assert "task failed" not in log.events()


async def test_why_a_router_refuses_an_agent_is_said_where_the_agent_is_watched_once(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "window_s", lambda *_, **__: 0.01)
    log = Log()
    client = agent([router.address], token="wrong", log=log)
    client.start()
    await until(lambda: count(router.metrics.hellos_refused, "unauthenticated") >= 3)
    await client.close()
    details = [fields["detail"] for level, event, fields in log.lines if level == "warning"]
    assert len(details) == 1
    assert details[0].startswith("unauthenticated: unknown beat credential")


async def test_a_router_that_stops_answering_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat_link, "ACK_S", 0.1)

    async def answer_hello_only(messages: AsyncIterator[bytes], context: Any) -> None:
        await anext(messages)
        await context.write(wire.encode_welcome(wire.Welcome(0.1)))
        await asyncio.sleep(60.0)

    method = grpc.stream_stream_rpc_method_handler(
        answer_hello_only, response_serializer=pb.RouterMessage.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("gir.v1.Fleet", {"Report": method}),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    client = agent([address])
    client.start()
    await until(lambda: client.state()[0].error == "no answer within 0.1s")
    assert client.links_up == 0
    await client.close()
    await server.stop(0)


async def test_a_lost_router_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff, "LOST_S", 1e9)
    monkeypatch.setattr(Backoff, "WINDOW_MAX_S", 1e9)
    running = Router()
    client = agent([await running.start()], seed=7)
    client.start()
    await until(lambda: client.links_up == 1)
    await running.server.close(0)
    await until(lambda: client.links_up == 0)
    again = Router()
    await again.start(running.server.port)
    await asyncio.sleep(0.2)
    assert again.sink.calls == []
    await client.close()
    await again.server.close(0)


async def test_a_fault_in_the_snapshot_does_not_silence_the_cluster_for_good(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "REFUSED_S", 0.05)
    faults = [ZeroDivisionError("odd")]

    def snapshot() -> Any:
        if faults:
            raise faults.pop()
        return report()

    client = agent([router.address], snapshot=snapshot)
    client.start()
    await until(lambda: "beat" in router.sink.kinds())
    await client.close()


async def test_an_urgent_change_does_not_wait_for_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat_link, "URGENT_GAP_S", 0.05)
    slow = Router(interval_s=30.0)
    client = agent([await slow.start()])
    client.start()
    await until(lambda: slow.sink.kinds().count("beat") == 1)
    client.beat_now()
    await until(lambda: slow.sink.kinds().count("beat") == 2, 1.0)
    await client.close()
    await slow.server.close(0)


async def test_peers_are_met_and_one_replica_is_met_once() -> None:
    first, second = Router(router_id="one"), Router(router_id="two")
    one, two = await first.start(), await second.start()
    alias = one.replace("127.0.0.1", "localhost")
    first.peers = second.peers = (one, alias, two, "junk", "127.0.0.1:1")
    client = agent([one])
    client.start()
    await until(lambda: "beat" in second.sink.kinds())
    await until(lambda: {state.router for state in client.state() if state.up} == {one, two})
    await until(lambda: alias not in {state.router for state in client.state()})
    assert repr(client).startswith(f"<BeatClient {one} up seq=")
    await client.close()
    for running in (first, second):
        await running.server.close(0)


async def test_a_port_in_use_is_said_so(router: Router) -> None:
    with pytest.raises(OSError, match=f"beats cannot listen on 127.0.0.1:{router.server.port}"):
        await Router().start(router.server.port)
