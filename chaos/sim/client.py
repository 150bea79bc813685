"""Simulated clients: they ask, read every byte, leave when they lose patience, and know a lie when they see one."""

import asyncio
from typing import TYPE_CHECKING, Any

import httptools
import msgspec

from chaos.sim import answers
from chaos.sim.loop import Node, SimLoop
from chaos.sim.network import Network
from chaos.sim.router import CLIENT_PORT, SimRouter, key_of
from chaos.sim.watchers import Observed

if TYPE_CHECKING:
    from chaos.sim.cluster import SimCluster


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One request a client is going to make."""

    at_s: float
    router: int
    tenant: str
    model: str
    stream: bool
    prompt_bytes: int
    tokens: int
    user: str = ""
    """End user it is sent for; '' names none."""
    patience_s: float | None = None
    """The client leaves after so long."""
    deadline_ms: int | None = None


class Told(msgspec.Struct, kw_only=True):
    """What became of it, as the client saw it."""

    ask: Ask
    started_s: float
    status: int = 0
    retry_after: str = ""
    ended_s: float | None = None
    left: bool = False
    broke: bool = False
    """The connection ended before the answer did."""


class Client(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, told: Told, observed: Observed, clusters: "dict[str, SimCluster]") -> None:
        self.told = told
        self._observed = observed
        self._clusters = clusters
        self._side: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._body = bytearray()
        self._id = ""
        self._cluster = ""
        self._over = False

    @property
    def body(self) -> bytes:
        """What it sends."""
        ask = self.told.ask
        prompt = "x" * ask.prompt_bytes
        asked = {
            "model": ask.model,
            "stream": ask.stream,
            "max_tokens": ask.tokens,
            "messages": [{"role": "user", "content": prompt}],
        }
        return msgspec.json.encode(asked | ({"user": ask.user} if ask.user else {}))

    def connection_made(self, transport: Any) -> None:
        self._side = transport
        ask, body = self.told.ask, self.body
        deadline = f"x-gir-deadline-ms: {ask.deadline_ms}\r\n" if ask.deadline_ms is not None else ""
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gir\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {key_of(ask.tenant)}\r\n{deadline}content-length: {len(body)}\r\n\r\n"
        )
        transport.write(head.encode() + body)

    def leave(self) -> None:
        """Lose patience."""
        if not self._over:
            self.told.left = self._over = True
            self._side.abort()

    # What the parser and the transport call

    def data_received(self, data: bytes) -> None:
        if not self._over:
            self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"x-request-id":
            self._id = value.decode()
        elif name == b"x-gir-cluster":
            self._cluster = value.decode()
        elif name == b"retry-after":
            self.told.retry_after = value.decode()

    def on_headers_complete(self) -> None:
        self.told.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._over = True
        self.told.ended_s = self._side.node.loop.time()
        self._judge()
        self._side.close()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _: Exception | None) -> None:
        if not self._over:
            self._over = self.told.broke = True
            self.told.ended_s = self._side.node.loop.time()

    # I4: no lies

    def _judge(self) -> None:
        body = bytes(self._body)
        self._observed.note("client", self._id, self.told.status, len(body), hash_of(body))
        if self.told.status != 200:
            if b'"error"' not in body:
                self._lie(f"status {self.told.status} without an error body")
        elif self.told.ask.stream:
            self._judge_stream(body)
        else:
            self._judge_whole(body)

    def _judge_stream(self, body: bytes) -> None:
        events = [event + b"\n\n" for event in body.split(b"\n\n") if event.strip()]
        done = answers.DONE in events
        failed = any(event.startswith(b'data: {"error"') for event in events)
        if done == failed:
            self._lie(f"done {done} and error {failed} in one stream")
            return
        sent = self._sent()
        words = [event for event in events if b'"choices":[{' in event]
        theirs = [event for event in sent if b'"choices":[{' in event]
        if words != theirs[: len(words)]:
            self._lie("the events are not those the pod sent, in their order")
        if done and len(words) != self.told.ask.tokens:
            self._lie(f"[DONE] after {len(words)} of {self.told.ask.tokens} tokens")

    def _judge_whole(self, body: bytes) -> None:
        answer = msgspec.json.decode(body)
        numbers = answers.numbers_in(answer["choices"][0]["message"]["content"])
        if numbers != list(range(1, self.told.ask.tokens + 1)):
            self._lie(f"a whole answer with tokens {numbers}")

    def _sent(self) -> list[bytes]:
        log = self._clusters[self._cluster].log.get(self._id, []) if self._cluster else []
        return log[-1].events if log else []

    def _lie(self, detail: str) -> None:
        self._observed.fail("I4", f"{self._id} from {self._cluster}: {detail}")


def hash_of(data: bytes) -> str:
    """Short and stable."""
    return f"{sum(data) * 2_654_435_761 % 2**32:08x}"


class Crowd:
    """All clients of a run."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        routers: list[SimRouter],
        clusters: "dict[str, SimCluster]",
        observed: Observed,
    ) -> None:
        self.node = Node(loop, "clients")
        self.told: list[Told] = []
        self._asking: list[asyncio.Task[None]] = []
        self._network = network
        self._routers = routers
        self._clusters = clusters
        self._observed = observed

    def plan(self, ask: Ask) -> None:
        """Have a request made when its time comes."""
        self.node.at(ask.at_s, self._send, ask)

    def _send(self, ask: Ask) -> None:
        told = Told(ask=ask, started_s=self.node.loop.time())
        self.told.append(told)
        self._asking.append(self.node.loop.create_task(self._ask(told), context=self.node.context))

    async def _ask(self, told: Told) -> None:
        client = Client(told, self._observed, self._clusters)
        router = self._routers[told.ask.router % len(self._routers)]
        try:
            async with asyncio.timeout(2.0):
                await self._network.dial(lambda: client, router.name, CLIENT_PORT)
        except OSError:
            told.broke, told.ended_s = True, self.node.loop.time()
            return
        if told.ask.patience_s is not None:
            self.node.later(told.ask.patience_s, client.leave)
