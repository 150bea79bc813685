"""Beats in: the gRPC server agents report to.

A stream belongs to the cluster its credential names, from its Hello to its end. What arrives is decoded and checked by
`gir.wire.beats`; a message that means nothing is refused in its Ack and counted, and neither closes the stream nor
touches the last good state. What order beats stand in and what they imply is the registry's business: this shell only
calls it, and tells it at once when a stream ends.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec

from gir.clock import Clock
from gir.model.beat import AgentHello, BeatReport
from gir.model.cluster import Intent
from gir.model.ids import ClusterId
from gir.telemetry.logs import Logger
from gir.telemetry.metrics import RouterMetrics
from gir.wire import beat_transport
from gir.wire import beats as wire
from gir.wire.v1 import fleet_pb2 as pb

HELLO_S = 5.0
"""Longest wait for the Hello of a new stream."""
STREAMS_PER_CLUSTER_MAX = 8
FLAG_REFUSALS = 3
FLAG_WINDOW_S = 60.0
"""This many refused beats within this time flag the cluster: somebody should look at its agent."""


class BeatSink(Protocol):
    """What the registry does with what agents say. '' means taken; anything else says why it was not."""

    def hello(self, hello: AgentHello, now_s: float) -> str:
        """An agent opened a stream."""

    def beat(self, beat: BeatReport, now_s: float) -> str:
        """One beat."""

    def goodbye(self, cluster: ClusterId, epoch: int, now_s: float) -> None:
        """An agent stops on purpose."""

    def stream_lost(self, cluster: ClusterId, epoch: int, now_s: float) -> None:
        """A stream ended without a goodbye."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What the server needs to know while it runs; asked anew each time, so that a new policy takes effect."""

    cluster_of: Callable[[str], ClusterId | None]
    """Cluster a beat credential belongs to; None for an unknown one."""
    welcome: Callable[[], wire.Welcome]
    directives: Callable[[ClusterId], tuple[wire.Directive, ...]] = lambda _: ()
    on_change: Callable[[], None] = lambda: None
    """Called after the registry has taken something: its view may be a new one."""


class _Stream:
    """One agent's stream after its Hello."""

    __slots__ = ("cluster", "epoch", "said_goodbye")

    def __init__(self, hello: AgentHello) -> None:
        self.cluster = hello.cluster
        self.epoch = hello.epoch
        self.said_goodbye = False


def directives_for(intent: Intent, router: str) -> tuple[wire.Directive, ...]:
    """What `router` tells the agent of a cluster with this intent: that it sends nothing new, and why."""
    return () if intent is Intent.SERVE else (wire.Drain(f"{intent.value} at {router}"),)


class BeatService:
    """Handler of `gir.v1.Fleet/Report`."""

    def __init__(self, sink: BeatSink, terms: Terms, *, clock: Clock, metrics: RouterMetrics, log: Logger) -> None:
        self._sink = sink
        self._terms = terms
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._streams: dict[ClusterId, list[_Stream]] = {}
        self._refusals: dict[ClusterId, deque[float]] = {}

    def __repr__(self) -> str:
        streams = " ".join(f"{cluster}:{len(open_now)}" for cluster, open_now in sorted(self._streams.items()))
        return f"<BeatService {streams or 'no streams'}>"

    def handler(self) -> grpc.GenericRpcHandler:
        """What a grpc.aio server registers. Bytes are parsed by us, so that junk is refused rather than fatal."""
        method = grpc.stream_stream_rpc_method_handler(
            self.report,
            request_deserializer=wire.parse_agent_message,
            response_serializer=pb.RouterMessage.SerializeToString,
        )
        return grpc.method_handlers_generic_handler("gir.v1.Fleet", {"Report": method})

    async def report(
        self,
        messages: AsyncIterator[pb.AgentMessage | wire.BeatRefused],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Serve one stream to its end."""
        cluster = await self._authenticated(context)
        stream = await self._open(cluster, messages, context)
        try:
            await context.write(wire.encode_welcome(self._terms.welcome()))
            async for message in messages:
                await context.write(wire.encode_ack(self._take(stream, message)))
                if stream.said_goodbye:
                    return
                if self._superseded(stream):
                    await context.abort(grpc.StatusCode.ABORTED, "another agent of this cluster has a higher epoch")
        finally:
            self._close(stream)

    async def _authenticated(self, context: grpc.aio.ServicerContext[Any, Any]) -> ClusterId:
        presented = dict(context.invocation_metadata() or ()).get("authorization", "")
        scheme, _, token = str(presented).partition(" ")
        cluster = self._terms.cluster_of(token) if scheme.lower() == "bearer" else None
        if cluster is None:
            self._metrics.hellos_refused.child("unauthenticated").inc()
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "unknown beat credential: see `agents` in the router's file"
            )
            raise AssertionError("abort raises")
        return cluster

    async def _open(
        self,
        cluster: ClusterId,
        messages: AsyncIterator[pb.AgentMessage | wire.BeatRefused],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> _Stream:
        """Read the Hello and introduce the agent to the registry, or abort the stream."""
        try:
            async with asyncio.timeout(HELLO_S):
                hello = self._decode_hello(cluster, await anext(messages, None))
        except TimeoutError:
            reason, detail = "late", f"no hello within {HELLO_S:g}s"
        except wire.BeatRefused as refused:
            reason, detail = refused.reason, str(refused)
        else:
            if len(self._streams.get(cluster, ())) >= STREAMS_PER_CLUSTER_MAX:
                reason, detail = "too_many_streams", f"cluster {cluster} has {STREAMS_PER_CLUSTER_MAX} streams open"
            elif refused_by_sink := self._sink.hello(hello, self._clock.monotonic_s()):
                reason, detail = "old_epoch", refused_by_sink
                self._metrics.rivals.child(cluster).inc()
            else:
                return self._adopt(hello)
        self._metrics.hellos_refused.child(reason).inc()
        self._log.warning("agent refused", cluster=cluster, reason=reason, detail=detail)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{reason}: {detail}")
        raise AssertionError("abort raises")

    def _decode_hello(self, cluster: ClusterId, message: pb.AgentMessage | wire.BeatRefused | None) -> AgentHello:
        if isinstance(message, wire.BeatRefused):
            raise message
        if message is None or message.WhichOneof("body") != "hello":
            raise wire.BeatRefused("no_hello", "first message", "something else", "say hello first")
        hello = wire.decode_hello(message.hello)
        if hello.cluster != cluster:
            raise wire.BeatRefused("wrong_cluster", "cluster", hello.cluster, f"this credential belongs to {cluster}")
        return hello

    def _adopt(self, hello: AgentHello) -> _Stream:
        stream = _Stream(hello)
        others = self._streams.setdefault(hello.cluster, [])
        if any(other.epoch < hello.epoch for other in others):
            self._metrics.rivals.child(hello.cluster).inc()
            self._log.warning("a newer agent took over a cluster", cluster=hello.cluster, epoch=hello.epoch)
        others.append(stream)
        self._metrics.beat_streams.child(hello.cluster).set(len(others))
        self._log.info(
            "agent connected", cluster=hello.cluster, epoch=hello.epoch, url=hello.url, version=hello.version
        )
        self._terms.on_change()
        return stream

    def _take(self, stream: _Stream, message: pb.AgentMessage | wire.BeatRefused) -> wire.Ack:
        """Hand one message to the registry; returns the answer."""
        try:
            if isinstance(message, wire.BeatRefused):
                raise message
            match message.WhichOneof("body"):
                case "beat":
                    return self._take_beat(stream, message.beat)
                case "goodbye":
                    return self._take_goodbye(stream, message.goodbye)
                case "hello":
                    raise wire.BeatRefused("second_hello", "message", "hello", "say hello once, then beats")
                case _:
                    return wire.Ack(stream.epoch, 0)  # a kind of message this version does not know
        except wire.BeatRefused as refused:
            return self._refuse(stream, message, refused)

    def _take_beat(self, stream: _Stream, beat: pb.Beat) -> wire.Ack:
        report = wire.decode_beat(beat, cluster=stream.cluster)
        if report.epoch != stream.epoch:
            raise wire.BeatRefused("wrong_epoch", "epoch", report.epoch, f"this stream's hello said {stream.epoch}")
        ignored = self._sink.beat(report, self._clock.monotonic_s())
        self._metrics.beats.child(stream.cluster, "ignored" if ignored else "taken").inc()
        self._unflag(stream.cluster)
        self._terms.on_change()
        return wire.Ack(report.epoch, report.seq, ignored, self._terms.directives(stream.cluster))

    def _take_goodbye(self, stream: _Stream, sent: pb.Goodbye) -> wire.Ack:
        goodbye = wire.decode_goodbye(sent)
        stream.said_goodbye = True
        self._sink.goodbye(stream.cluster, stream.epoch, self._clock.monotonic_s())
        self._log.info("agent said goodbye", cluster=stream.cluster, epoch=stream.epoch, reason=goodbye.reason)
        self._terms.on_change()
        return wire.Ack(stream.epoch, goodbye.seq)

    def _refuse(
        self, stream: _Stream, message: pb.AgentMessage | wire.BeatRefused, refused: wire.BeatRefused
    ) -> wire.Ack:
        cluster, now_s = stream.cluster, self._clock.monotonic_s()
        self._metrics.beats.child(cluster, "refused").inc()
        self._metrics.beats_refused.child(cluster, refused.reason).inc()
        recent = self._refusals.setdefault(cluster, deque(maxlen=FLAG_REFUSALS))
        recent.append(now_s)
        flag = self._metrics.beats_flagged.child(cluster)
        if len(recent) == FLAG_REFUSALS and now_s - recent[0] <= FLAG_WINDOW_S and not flag.value:
            flag.set(1)
            self._log.warning(
                "an agent keeps sending bad beats", cluster=cluster, reason=refused.reason, detail=str(refused)
            )
        seq = 0 if isinstance(message, wire.BeatRefused) else message.beat.seq
        return wire.Ack(stream.epoch, seq, str(refused), self._terms.directives(cluster))

    def _unflag(self, cluster: ClusterId) -> None:
        recent = self._refusals.get(cluster)
        if recent and self._clock.monotonic_s() - recent[-1] > FLAG_WINDOW_S:
            del self._refusals[cluster]
            self._metrics.beats_flagged.child(cluster).set(0)

    def _superseded(self, stream: _Stream) -> bool:
        return any(other.epoch > stream.epoch for other in self._streams[stream.cluster])

    def _close(self, stream: _Stream) -> None:
        open_now = self._streams[stream.cluster]
        open_now.remove(stream)
        self._metrics.beat_streams.child(stream.cluster).set(len(open_now))
        if not open_now:
            del self._streams[stream.cluster]
        if not stream.said_goodbye:
            self._sink.stream_lost(stream.cluster, stream.epoch, self._clock.monotonic_s())
            self._log.warning("agent stream lost", cluster=stream.cluster, epoch=stream.epoch)
            self._terms.on_change()


class BeatServer:
    """The service on one address."""

    __slots__ = ("_server", "_service", "port")

    def __init__(self, service: BeatService) -> None:
        self._service = service
        self._server: grpc.aio.Server | None = None
        self.port = 0
        """Port in use, once started."""

    async def start(self, host: str, port: int, credentials: grpc.ServerCredentials | None = None) -> None:
        """Listen on `host`:`port` (0 takes any), with TLS if `credentials` are given. Raises OSError when it cannot."""
        server = grpc.aio.server(options=beat_transport.SERVER_OPTIONS)
        server.add_generic_rpc_handlers((self._service.handler(),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                self.port = server.add_insecure_port(address)
            else:
                self.port = server.add_secure_port(address, credentials)
        except RuntimeError:
            # gRPC does not say why, only how to make it talk; the reason is hardly ever another.
            problem = f"beats cannot listen on {address}: address in use or not ours; free the port or choose another"
            raise OSError(problem) from None
        await server.start()
        self._server = server

    async def close(self, grace_s: float = 0.5) -> None:
        """End every stream after `grace_s` and stop listening. Safe to call twice."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)
