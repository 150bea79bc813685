"""Whatever happens in whatever order: counts are never negative, nothing leaks, promises are kept once."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gir.model.errors import RequestError
from gir.model.request import Criticality, Usage
from tests.support.agent_pool import START_S, make_pool, signals
from tier1_agent.gate import Gate, GateSettings, Waiter, WaiterState
from tier1_agent.picker import PickRequest, pick
from tier1_agent.pods import PodState, Ticket
from tier1_agent.pool import INFINITE, Mode

draws = st.floats(0.0, 1.0, exclude_max=True)
hashes = st.lists(st.integers(0, 40), max_size=12, unique=True).map(tuple)


class PoolMachine(RuleBasedStateMachine):
    """A pool under requests, scrapes, faults, restarts and departures."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S
        self.pool = make_pool("a", "b", "c")
        self.open: list[Ticket] = []
        self.epoch = 0.0

    @rule(tokens=st.floats(0.0, 9_000.0), hashes=hashes, draw=draws, streams=st.booleans())
    def dispatch(self, tokens: float, hashes: tuple[int, ...], draw: float, streams: bool) -> None:
        request = PickRequest(tokens=tokens, hashes=hashes)
        choice = pick(self.pool, request, now_s=self.now_s, draw=draw)
        present = [pod for pod in self.pool.pods if pod.state is not PodState.GONE]
        assert (choice is None) == (not present), "somebody is picked as long as anybody is listed"
        if choice is not None:
            assert choice.pod.state is not PodState.GONE
            assert choice.blocks_cached <= len(hashes)
            self.open.append(
                self.pool.dispatched(
                    choice.pod,
                    self.now_s,
                    tokens=tokens,
                    hashes=hashes,
                    blocks_cached=choice.blocks_cached,
                    prompt_bytes=int(tokens * 4),
                    streams=streams,
                )
            )

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        self.pool.first_token(data.draw(st.sampled_from(self.open)), self.now_s)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), ok=st.booleans(), cached=st.integers(0, 9_000), twice=st.booleans())
    def finish(self, data: st.DataObject, ok: bool, cached: int, twice: bool) -> None:
        ticket = data.draw(st.sampled_from(self.open))
        usage = Usage(prompt_tokens=900, completion_tokens=7, cached_tokens=cached)
        for _ in range(1 + twice):
            self.pool.finished(ticket, self.now_s, ok=ok, usage=usage)
        self.open.remove(ticket)

    @rule(
        place=st.integers(0, 2),
        running=st.none() | st.integers(0, 40),
        waiting=st.none() | st.integers(0, 40),
        kv=st.none() | st.floats(0.0, 1.0),
        restart=st.booleans(),
    )
    def scrape(self, place: int, running: int | None, waiting: int | None, kv: float | None, restart: bool) -> None:
        pod = self.pool.pods[place]
        if pod.state is PodState.GONE:
            return
        self.epoch += 10.0 * restart
        fields: dict[str, Any] = {"running": running, "waiting": waiting, "kv_usage": kv, "kv_tokens_total": 8_000}
        self.pool.scraped(pod, signals(started_wall_s=self.epoch, **fields), self.now_s)

    @rule(place=st.integers(0, 2), misses=st.booleans())
    def trouble(self, place: int, misses: bool) -> None:
        pod = self.pool.pods[place]
        if pod.state is not PodState.GONE:
            (self.pool.missed if misses else self.pool.fault)(pod, self.now_s)

    @rule(place=st.integers(0, 2))
    def swap(self, place: int) -> None:
        """A pod leaves; another takes its place."""
        pod = self.pool.pods[place]
        if pod.state is not PodState.GONE:
            self.pool.remove(pod, self.now_s)
        else:
            self.pool.add(pod.spec)

    @rule(step_s=st.floats(0.0, 3.0))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s
        self.pool.tick(self.now_s)

    @invariant()
    def counts_match_what_is_open(self) -> None:
        for pod in self.pool.pods:
            mine = [ticket for ticket in self.open if ticket.pod is pod]
            assert pod.in_flight == len(mine)
            assert set(pod.pending) <= set(mine)
            assert pod.foreign >= 0.0
            assert pod.slots >= 1
            expected = sum(ticket.uncached_tokens for ticket in pod.pending)
            assert abs(pod.pending_tokens - expected) < 1e-6 * max(1.0, expected)

    @invariant()
    def arrays_are_seconds(self) -> None:
        for pod in self.pool.pods:
            assert self.pool.static_s[pod.bit] >= 0.0
            assert self.pool.floor_s[pod.bit] >= -1e-9
            assert self.pool.per_token_s[pod.bit] >= 0.0
            if pod.state is PodState.GONE:
                assert self.pool.static_s[pod.bit] == INFINITE
        assert self.pool.mode is not Mode.FULL or any(pod.state is PodState.READY for pod in self.pool.pods)

    def teardown(self) -> None:
        for ticket in self.open:
            self.pool.finished(ticket, self.now_s, ok=False)
        assert all(pod.in_flight == 0 and not pod.pending for pod in self.pool.pods)


class GateMachine(RuleBasedStateMachine):
    """A gate before three places."""

    places = 3

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate(GateSettings(queue_max=6))
        self.waiting: list[Waiter] = []
        self.running = 0
        self.now_s = START_S

    def room(self) -> int:
        return self.places - self.running

    @rule(criticality=st.sampled_from(list(Criticality)))
    def arrive(self, criticality: Criticality) -> None:
        self.now_s += 0.5
        before = [waiter for waiter in self.waiting if waiter.state is WaiterState.WAITING]
        try:
            waiter = self.gate.arrive(criticality, room=self.room(), now_s=self.now_s, deadline_s=float("inf"))
        except RequestError:
            assert len(before) == 6
            assert all(other.criticality >= criticality for other in before), "nobody less important was kept instead"
            return
        if waiter is None:
            assert not before
            self.running += 1
        else:
            self.waiting.append(waiter)

    @precondition(lambda self: self.running)
    @rule()
    def end(self) -> None:
        self.now_s += 0.5
        self.running -= 1
        self.gate.drained(self.now_s)
        waiting = [waiter for waiter in self.waiting if waiter.state is WaiterState.WAITING]
        self.gate.call(self.room())
        for called in [waiter for waiter in waiting if waiter.state is WaiterState.CALLED]:
            left = [waiter for waiter in waiting if waiter.state is WaiterState.WAITING]
            assert all(called.criticality >= other.criticality for other in left)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def proceed_or_leave(self, data: st.DataObject) -> None:
        waiter = data.draw(st.sampled_from(self.waiting))
        self.running += waiter.state is WaiterState.CALLED and data.draw(st.booleans())
        self.gate.leave(waiter)
        self.gate.leave(waiter)
        self.waiting.remove(waiter)
        self.gate.call(self.room())

    @invariant()
    def promises_are_kept(self) -> None:
        states = [waiter.state for waiter in self.waiting]
        assert self.gate.waiting == states.count(WaiterState.WAITING) <= 6
        assert self.gate.reserved == states.count(WaiterState.CALLED)
        assert self.running + self.gate.reserved <= self.places
        assert not self.gate.waiting or self.running + self.gate.reserved == self.places, "nobody waits beside a place"


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGate = GateMachine.TestCase
TestGate.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
