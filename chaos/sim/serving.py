"""One request inside a simulated cluster: through the gate, to a pod, and back as bytes."""

import asyncio
import re
from typing import TYPE_CHECKING, Any

import msgspec

from chaos.engine.values import EngineRequest, TokenEvent
from chaos.sim import answers
from chaos.sim.pods import Ill, SimPod
from gir.model.errors import RequestError
from gir.model.ids import PodId
from gir.model.request import Criticality, Usage
from tier1_agent.gate import Waiter, WaiterState
from tier1_agent.picker import PickRequest, pick
from tier1_agent.pods import Ticket
from tier1_agent.pool import Pool

if TYPE_CHECKING:
    from chaos.sim.cluster import SimCluster

_HEADER = re.compile(rb"\r\n([a-z-]+): ([^\r]*)")
_CUTS = frozenset({"error_late", "cut_reset", "cut_end", "cut_half"})


class Sent(msgspec.Struct):
    """What one attempt was sent."""

    cluster: str
    events: list[bytes]
    tokens: int = 0
    prompt: int = 0
    done: bool = False


class AgentConnection(asyncio.Protocol):
    """The agent's side of one connection from a router: one request after the other."""

    def __init__(self, agent: "SimCluster") -> None:
        self.agent = agent
        self.side: Any = None
        self._held = b""
        self._serving: Serving | None = None

    @property
    def idle(self) -> bool:
        """Between requests."""
        return self._serving is None and not self._held

    def connection_made(self, transport: Any) -> None:
        self.side = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        end = self._held.find(b"\r\n\r\n")
        if end < 0 or self._serving is not None:
            return
        headers = dict(_HEADER.findall(self._held[:end]))
        length = int(headers.get(b"content-length", b"0"))
        if len(self._held) < end + 4 + length:
            return
        body, self._held = self._held[end + 4 : end + 4 + length], self._held[end + 4 + length :]
        self._serving = Serving(self, headers, body)
        self._serving.begin()

    def eof_received(self) -> bool:
        self._leave()
        return False

    def connection_lost(self, _: Exception | None) -> None:
        self._leave()

    def _leave(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.end(ok=False)

    def send(self, data: bytes) -> None:
        """Bytes to the router."""
        self.side.write(data)

    def answered(self) -> None:
        """The answer is complete."""
        self._serving = None


class Serving:
    """A request on its way; `end` gives everything back, once."""

    __slots__ = ("_agent", "_asked", "_connection", "_ended", "_engine_id", "_headers", "_ill", "_pod", "_pool",
                 "_prompt", "_sent", "_started", "_ticket", "_waiter", "_with_usage")  # fmt: skip

    def __init__(self, connection: AgentConnection, headers: dict[bytes, bytes], body: bytes) -> None:
        self._connection = connection
        self._agent = connection.agent
        self._headers = headers
        self._asked = answers.decode_asked(body)
        self._with_usage = b'"include_usage":true' in body.replace(b" ", b"")
        self._prompt = max(1, len(body) // 4)
        self._pool: Pool | None = None
        self._pod: SimPod | None = None
        self._ill: Ill | None = None
        """What was wrong with the pod when the request came to it."""
        self._ticket: Ticket | None = None
        self._waiter: Waiter | None = None
        self._engine_id = 0
        self._started = self._ended = False
        self._sent = Sent(cluster=self._agent.spec.name, events=[], prompt=self._prompt)

    @property
    def request_id(self) -> str:
        """As the router calls it."""
        return self._headers[b"x-request-id"].decode()

    # In

    def begin(self) -> None:
        """Through the gate."""
        agent = self._agent
        agent.servings[self] = None
        agent.touch()
        agent.log.setdefault(self.request_id, []).append(self._sent)
        found = agent.fleet.find(self._asked.model)
        if found is None:
            self._refuse(answers.error_answer(404, "no such model here", by_agent=True))
            return
        if agent.draining:
            self._refuse(answers.error_answer(503, "draining", by_agent=True, retry_after_s=1))
            return
        self._pool = pool = found[0]
        agent.scrape()
        room = pool.room()
        if room is None:
            self._go()
            return
        now_s = agent.loop.time()
        deadline_s = now_s + int(self._headers.get(b"x-gir-deadline-ms", b"60000")) / 1_000
        criticality = Criticality[self._headers.get(b"x-gir-criticality", b"standard").decode().upper()]
        try:
            waiter = agent.gate(pool).arrive(criticality, room=room, now_s=now_s, deadline_s=deadline_s)
        except RequestError as error:
            self._refuse_with(error)
            return
        if waiter is None:
            self._go()
            return
        self._waiter = waiter
        waiter.wake = self._woken
        agent.node.at(min(waiter.deadline_s, waiter.patience_s), self._waited)

    def _woken(self) -> None:
        self._agent.node.soon(self._called)

    def _called(self) -> None:
        waiter, pool = self._waiter, self._pool
        if waiter is None or pool is None or self._ended:
            return
        if waiter.state is WaiterState.EVICTED:
            self._refuse_with(self._agent.gate(pool).failure(waiter))
        elif waiter.state is WaiterState.CALLED:
            self._go()

    def _waited(self) -> None:
        if not self._ended and self._waiter is not None and self._waiter.state is WaiterState.WAITING:
            assert self._pool is not None, "waits for no pool"
            failure = self._agent.gate(self._pool).failure(self._waiter)
            self._refuse_with(failure)

    def _go(self) -> None:
        """To a pod."""
        agent, pool = self._agent, self._pool
        assert pool is not None, "picked without a pool"
        now_s = agent.loop.time()
        choice = pick(pool, PickRequest(tokens=self._prompt), now_s=now_s, draw=agent.chance.random())
        if choice is None:
            self._refuse(answers.error_answer(503, "no pod can take it", by_agent=True, retry_after_s=2))
            return
        self._pod = pod = agent.pods[PodId(choice.pod.spec.id)]
        self._ill = pod.befalls(agent.chance)
        self._ticket = pool.dispatched(choice.pod, now_s, tokens=self._prompt, streams=self._asked.stream)
        if self._waiter is not None:
            agent.gate(pool).leave(self._waiter)
        if self._ill is not None and self._ill.kind.isdigit():
            self._answer_badly(int(self._ill.kind))
            return
        if self._ill is not None and self._ill.kind == "error_first":
            self._connection.send(answers.HEAD_STREAM + answers.chunked(answers.ERROR_EVENT) + answers.LAST_CHUNK)
            pool.fault(choice.pod, now_s)
            self.end(ok=False)
            return
        request = EngineRequest(prompt_tokens=self._prompt, output_tokens=self._asked.max_tokens)
        self._engine_id = pod.submit(request, self._token)

    # Out

    def _token(self, event: TokenEvent) -> None:
        pool, ticket = self._pool, self._ticket
        if self._ended or pool is None or ticket is None:
            return
        if event.first:
            pool.first_token(ticket, self._agent.loop.time())
        if self._asked.stream and not self._stream(event):
            return
        if event.finished:
            self._finish(event.total)

    def _stream(self, event: TokenEvent) -> bool:
        """Send what is new; False when the stream has broken there."""
        ill = self._ill
        for number in range(self._sent.tokens + 1, event.total + 1):
            breaks = ill is not None and ill.kind in _CUTS
            if not self._started:
                self._started = True
                self._connection.send(answers.HEAD_UNFRAMED if self._unframed else answers.HEAD_STREAM)
            if breaks and ill is not None and number > ill.after:
                self._break(ill.kind)
                return False
            last = event.finished and number == event.total
            self._say(answers.token_event(str(self._engine_id), number, last=last))
            self._sent.tokens = number
        return True

    def _say(self, event: bytes) -> None:
        self._sent.events.append(event)
        self._connection.send(event if self._unframed else answers.chunked(event))

    @property
    def _unframed(self) -> bool:
        """The answer ends with its connection, so that its cut looks like its end."""
        return self._asked.stream and self._ill is not None and self._ill.kind == "cut_end"

    def _break(self, kind: str) -> None:
        connection = self._connection
        if kind == "error_late":
            connection.send(answers.chunked(answers.ERROR_EVENT) + answers.LAST_CHUNK)
        elif kind == "cut_half":
            connection.send(answers.chunked(answers.HALF_EVENT))
        self._fault()
        self.end(ok=False, keep=kind == "error_late")
        if kind == "cut_reset":
            connection.side.abort()
        elif kind != "error_late":
            connection.side.close()

    def _finish(self, tokens: int) -> None:
        usage = Usage(prompt_tokens=self._prompt, completion_tokens=tokens)
        answer = str(self._engine_id)
        self._sent.tokens = tokens
        self._sent.done = True
        if not self._asked.stream:
            self._connection.send(answers.whole_answer(answer, self._prompt, tokens))
        else:
            if self._with_usage:
                self._say(answers.usage_event(answer, self._prompt, tokens))
            self._say(answers.DONE)
            if not self._unframed:
                self._connection.send(answers.LAST_CHUNK)
        self.end(ok=True, usage=usage, keep=not self._unframed)
        if self._unframed:
            self._connection.side.close()

    def broken(self) -> None:
        """Its engine has died."""
        self._fault()
        if not self._started:
            self._refuse(answers.error_answer(500, "the engine died"))
        else:
            self.end(ok=False, keep=False)
            self._connection.side.abort()

    # Endings

    def _fault(self) -> None:
        if self._pool is not None and self._ticket is not None:
            self._pool.fault(self._ticket.pod, self._agent.loop.time())

    def _answer_badly(self, status: int) -> None:
        if status >= 500 and status != 503:
            self._fault()
        retry_after_s = 1 if status in (429, 503) else None
        self._refuse(answers.error_answer(status, "as ordered", retry_after_s=retry_after_s))

    def _refuse_with(self, error: RequestError) -> None:
        retry_after_s = max(1, int(error.retry_after_s or 1))
        status = error.kind.value.status
        known = status if status in (429, 503) else 503
        self._refuse(answers.error_answer(known, error.message, by_agent=True, retry_after_s=retry_after_s))

    def _refuse(self, answer: bytes) -> None:
        self._connection.send(answer)
        self.end(ok=False)

    def end(self, *, ok: bool, usage: Usage | None = None, keep: bool = True) -> None:
        """Give back what it holds: ticket, place at the gate, engine. A second call changes nothing."""
        if self._ended:
            return
        self._ended = True
        agent, pool = self._agent, self._pool
        del agent.servings[self]
        agent.touch()
        now_s = agent.loop.time()
        if self._pod is not None and self._engine_id:
            self._pod.cancel(self._engine_id)
        if pool is not None:
            if self._waiter is not None:
                agent.gate(pool).leave(self._waiter)
            if self._ticket is not None:
                agent.recent(pool.model).note(now_s, ok=ok, ttft_s=None)
                pool.finished(self._ticket, now_s, ok=ok, usage=usage)
                agent.gate(pool).drained(now_s)
            room = pool.room()
            if room is not None:
                agent.gate(pool).call(room)
        if keep:
            self._connection.answered()
