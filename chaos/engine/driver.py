"""The pure engine under a real clock: a timer calls it when its next token is due, and the tokens go out."""

import asyncio
import math

import msgspec

from chaos.engine.answers import EventSink
from chaos.engine.core import Engine, EngineMetrics, TokenEvent
from chaos.engine.metrics import Observed
from chaos.engine.prompts import Job
from chaos.engine.shapes import Stream
from gir.clock import Clock


class Stats(msgspec.Struct, kw_only=True):
    """What this pod did, kept across simulated restarts: evidence for checks."""

    requests: int = 0
    active: int = 0
    completed: int = 0
    aborted: int = 0
    """Clients that left before their answer was complete."""
    broken: int = 0
    """Answers that a fault ended early."""
    tokens_delivered: int = 0
    delivered_by_tenant: dict[str, int] = {}


class Generation:
    """One job in the engine: its sequences (one for each choice) and where their tokens go."""

    __slots__ = (
        "arrived_s",
        "cached",
        "counts",
        "done",
        "ended",
        "job",
        "last_s",
        "sequences",
        "shape",
        "sink",
        "started",
        "tenant",
    )

    def __init__(self, job: Job, tenant: str, arrived_s: float, done: "asyncio.Future[None]") -> None:
        self.job = job
        self.tenant = tenant
        self.arrived_s = arrived_s
        self.last_s = arrived_s
        self.done = done
        self.sequences: dict[int, int] = {}
        self.counts = [0] * job.choices
        self.cached = 0
        self.started = False
        self.ended = 0
        self.shape: Stream | None = None
        self.sink: EventSink | None = None

    def finish(self) -> None:
        """Wake the handler."""
        if not self.done.done():
            self.done.set_result(None)


class Driver:
    """Owns one engine and the generations in it."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._generations: dict[int, Generation] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.observed = Observed()
        self.stats = Stats()

    def submit(self, job: Job, tenant: str) -> Generation:
        """Queue a job; its tokens go to `generation.sink` once there is one. ValueError when it can never fit."""
        now_s = self._clock.monotonic_s()
        generation = Generation(job, tenant, now_s, asyncio.get_running_loop().create_future())
        for index in range(job.choices):
            sequence = self._engine.submit(job.work, now_s)
            generation.sequences[sequence] = index
            self._generations[sequence] = generation
        self.stats.active += 1
        # Not before the caller has attached its sink: a process that was preempted here would find tokens due already.
        asyncio.get_running_loop().call_soon(self._pump)
        return generation

    def settle(self, generation: Generation) -> None:
        """Count an answer that has ended by itself or by a fault."""
        if generation.ended < generation.job.choices:
            self.stats.broken += 1
            self.observed.ends["error"] += 1
        else:
            self.stats.completed += 1
            self.observed.ends[generation.job.finish_reason] += 1
            self.observed.e2e.observe(self._clock.monotonic_s() - generation.arrived_s)

    def abort(self, *, here: bool) -> None:
        """Count an answer that lost its connection: because the client left, or (`here`) by our own doing."""
        self.stats.aborted += not here
        self.stats.broken += here
        self.observed.ends["error" if here else "abort"] += 1

    def drop(self, generation: Generation) -> None:
        """Take a generation out of the engine, whatever its state."""
        now_s = self._clock.monotonic_s()
        self.stats.active -= 1
        for sequence in generation.sequences:
            self._generations.pop(sequence, None)
            self._engine.cancel(sequence, now_s)
        self._pump()

    def delivered(self, generation: Generation, tokens: int) -> None:
        """Count tokens that left for the client."""
        self.stats.tokens_delivered += tokens
        by_tenant = self.stats.delivered_by_tenant
        by_tenant[generation.tenant] = by_tenant.get(generation.tenant, 0) + tokens

    def metrics(self) -> EngineMetrics:
        """The engine now."""
        state = self._engine.metrics(self._clock.monotonic_s())
        self._pump()
        return state

    def set_pace(self, *, prefill: float, decode: float) -> None:
        """Stretch the engine's steps."""
        self._engine.set_pace(self._clock.monotonic_s(), prefill=prefill, decode=decode)

    def restart(self) -> None:
        """Lose everything but the evidence."""
        self._engine.restart(self._clock.monotonic_s())
        self.observed = Observed()

    def _pump(self) -> None:
        """Deliver what is due and set the timer for what comes next."""
        now_s = self._clock.monotonic_s()
        for event in self._engine.advance(now_s):
            generation = self._generations.get(event.id)
            if generation is not None:
                self._deliver(generation, event)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_s = self._engine.next_event_s()
        if at_s < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at_s - now_s), self._pump)

    def _deliver(self, generation: Generation, event: TokenEvent) -> None:
        index = generation.sequences[event.id]
        before, generation.counts[index] = generation.counts[index], event.total
        generation.cached = event.cached_tokens
        if event.first:
            self.observed.ttft.observe(event.at_s - generation.arrived_s)
        else:
            self.observed.inter_token.observe((event.at_s - generation.last_s) / max(1, event.tokens), event.tokens)
        generation.last_s = event.at_s
        generation.ended += event.finished
        complete = generation.ended == generation.job.choices
        sink, shape = generation.sink, generation.shape
        if sink is not None and shape is not None:
            if not generation.started:
                generation.started = True
                sink.events(shape.opening(event.cached_tokens))
            for count in range(before + 1, event.total + 1):  # an event for each token, however late the timer was
                last = event.finished and count == event.total
                sink.events(shape.delta(index, count - 1, count, last=last))
                self.delivered(generation, 0 if sink.dead else 1)
            if complete:
                sink.events(shape.closing(sum(generation.counts), generation.cached))
                sink.end()
        if complete and (sink is None or not sink.holding):
            generation.finish()
