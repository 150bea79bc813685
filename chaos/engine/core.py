"""Continuous batching as a pure state machine: requests in, token events out, time is an argument.

The engine works in steps. In a step every decoding sequence gets one token, and prompts that still need it are
prefilled within the step's token budget (chunked), or whole and alone (not chunked). A step ends at a time known when
it begins, so nothing has to be simulated in between: `next_event_s` says when something will happen and `advance`
makes it so. While the batch does not change, many decode steps are one *stretch*, and a caller that wants no single
tokens (`each_token=False`) pays once for the stretch, not for each token.

The same machine runs under the HTTP server (a timer calls `advance`) and in virtual time (an event heap does).
It must never look at a clock or draw a random number.
"""

import math
from collections import deque

import msgspec

from chaos.engine.adapters import AdapterSlots
from chaos.engine.kv import KvCache
from chaos.engine.values import Counters, EngineConfig, EngineMetrics, EngineRequest, TokenEvent

__all__ = ["Counters", "Engine", "EngineConfig", "EngineMetrics", "EngineRequest", "TokenEvent"]

_ROUNDING = 1e-9
"""Seconds by which a step may be early, so that a sum of floats does not miss the caller's own sum."""


class _Sequence:
    """One request inside the engine."""

    __slots__ = ("cached", "generated", "held", "id", "prefill_left", "private", "reported", "request", "tokens_held")

    def __init__(self, id_: int, request: EngineRequest) -> None:
        self.id = id_
        self.request = request
        self.generated = 0
        self.reported = 0
        self.cached = 0
        self.prefill_left = 0
        self.held: tuple[int, ...] = ()
        self.private = 0
        self.tokens_held = 0
        """Tokens its blocks can hold."""

    @property
    def tokens(self) -> int:
        return self.request.prompt_tokens + self.generated

    @property
    def left(self) -> int:
        return self.request.output_tokens - self.generated


class Engine:
    """The machine. Calls must come with non-decreasing `now_s`; events are collected until `advance` hands them out."""

    __slots__ = (
        "_adapters",
        "_counters",
        "_decode_pace",
        "_events",
        "_kv",
        "_next_id",
        "_now_s",
        "_prefill_pace",
        "_running",
        "_sequences",
        "_step_prefill",
        "_step_s",
        "_step_start_s",
        "_steps",
        "_waiting",
        "config",
    )

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._kv = KvCache(config.kv_blocks)
        self._adapters = AdapterSlots(config.adapter_slots, config.adapter_load_s)
        self._prefill_pace = self._decode_pace = 1.0
        self._next_id = 1
        self._now_s = -math.inf
        self._reset()

    def _reset(self) -> None:
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []
        self._sequences: dict[int, _Sequence] = {}
        self._events: list[TokenEvent] = []
        self._steps = 0
        self._step_s = 0.0
        self._step_start_s = 0.0
        self._step_prefill: list[tuple[_Sequence, int]] = []
        self._counters = Counters()

    def __repr__(self) -> str:
        return f"<Engine {len(self._running)} running, {len(self._waiting)} waiting, {self._kv!r}>"

    # What callers do.

    def submit(self, request: EngineRequest, now_s: float) -> int:
        """Queue a request and return its id. ValueError when it could never fit or its adapter has no slot."""
        if self._blocks(request.prompt_tokens + request.output_tokens) > self.config.kv_blocks:
            raise ValueError(
                f"prompt_tokens + output_tokens is {request.prompt_tokens + request.output_tokens}: more than the "
                f"{self.config.kv_blocks * self.config.block_tokens} tokens of KV memory; ask for less"
            )
        if request.adapter is not None and not self.config.adapter_slots:
            raise ValueError(f"adapter is {request.adapter!r}: this engine has no adapter slots; set adapter_slots")
        self._run_to(now_s)
        sequence = _Sequence(self._next_id, request)
        self._next_id += 1
        self._sequences[sequence.id] = sequence
        self._waiting.append(sequence)
        self._reconsider(now_s)
        return sequence.id

    def cancel(self, id_: int, now_s: float) -> bool:
        """Drop a request; its tokens up to `now_s` stay counted. False when it has ended already."""
        self._run_to(now_s)
        sequence = self._sequences.pop(id_, None)
        if sequence is None:
            return False
        self._counters.cancelled += 1
        if sequence in self._running:
            self._step_prefill = [chunk for chunk in self._step_prefill if chunk[0] is not sequence]
            self._leave(sequence)
        else:
            self._waiting.remove(sequence)
        self._reconsider(now_s)
        return True

    def next_event_s(self) -> float:
        """When `advance` will next have something to say; infinity while nothing runs or loads."""
        if self._events:
            return self._now_s
        if self._steps:
            return self._step_start_s + self._step_s * (1 if self.config.each_token else self._steps)
        return self._adapters.next_ready_s(self._now_s) if self._waiting else math.inf

    def advance(self, now_s: float) -> list[TokenEvent]:
        """Everything that has happened up to `now_s`, in order of time."""
        self._run_to(now_s)
        events, self._events = self._events, []
        return events

    def set_pace(self, now_s: float, *, prefill: float = 1.0, decode: float = 1.0) -> None:
        """Multiply the time of steps that prefill and of steps that only decode, from the next step on."""
        self._run_to(now_s)
        self._prefill_pace, self._decode_pace = prefill, decode
        self._cut(now_s)

    def restart(self, now_s: float) -> list[int]:
        """Lose everything: sequences, cache, adapters, counters. Returns the ids that died."""
        died = list(self._sequences)
        self._now_s = now_s
        self._kv.clear()
        self._adapters.clear()
        self._reset()
        return died

    def metrics(self, now_s: float) -> EngineMetrics:
        """State at `now_s`."""
        self._run_to(now_s)
        waiting = tuple(sorted({s.request.adapter for s in self._waiting if s.request.adapter is not None}))
        return EngineMetrics(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_usage=self._kv.blocks_used / self._kv.blocks_total,
            kv_blocks_used=self._kv.blocks_used,
            kv_blocks_total=self._kv.blocks_total,
            adapters_running=tuple(self._adapters.running),
            adapters_waiting=waiting,
            adapters_resident=tuple(self._adapters.resident(now_s)),
            counters=msgspec.structs.replace(self._counters),
        )

    # Time.

    def _run_to(self, now_s: float) -> None:
        """Finish every step that ends by `now_s`."""
        limit_s = now_s + _ROUNDING
        while True:
            if self._steps:
                done = min(self._steps, int((limit_s - self._step_start_s) / self._step_s))
                if done <= 0 or (done < self._steps and not self.config.each_token):
                    break  # tokens inside a stretch are counted when it ends or is cut
                self._finish_steps(done)
            elif self._waiting and (ready_at_s := self._adapters.next_ready_s(self._now_s)) <= limit_s:
                self._plan(ready_at_s)
            else:
                break
        self._now_s = max(self._now_s, now_s)

    def _reconsider(self, now_s: float) -> None:
        """The batch may change: at once if nothing runs, else after the step in progress."""
        if not self._running:
            self._plan(now_s)
        elif self._waiting and len(self._running) < self.config.slots_max:
            self._cut(now_s)

    def _cut(self, now_s: float) -> None:
        """End the stretch with the step in progress."""
        if self._steps > 1:
            done = int((now_s + _ROUNDING - self._step_start_s) / self._step_s)
            if done > 0:
                self._finish_steps(min(done, self._steps - 1))
            self._steps = 1

    def _finish_steps(self, done: int) -> None:
        """Account for `done` steps of the stretch; plan anew when it is over."""
        end_s = self._step_start_s + done * self._step_s
        if self.config.chunked_prefill or not self._step_prefill:
            for sequence in [s for s in self._running if not s.prefill_left]:
                self._emit(sequence, done, end_s)
        for sequence, tokens in self._step_prefill:
            sequence.prefill_left -= tokens
            if not sequence.prefill_left:
                self._emit(sequence, min(1, sequence.left), end_s)
        self._step_prefill = []
        self._step_start_s = end_s
        self._steps -= done
        self._now_s = max(self._now_s, end_s)
        if not self._steps:
            self._plan(end_s)

    def _emit(self, sequence: _Sequence, tokens: int, at_s: float) -> None:
        first = sequence.reported == 0
        sequence.generated += tokens
        self._counters.generated_tokens += tokens
        finished = sequence.left <= 0
        if first or finished or self.config.each_token:
            new = sequence.generated - sequence.reported
            sequence.reported = sequence.generated
            self._events.append(
                TokenEvent(sequence.id, at_s, new, sequence.generated, first, finished, sequence.cached)
            )
        if finished:
            self._counters.finished += 1
            del self._sequences[sequence.id]
            self._leave(sequence)

    # The batch.

    def _plan(self, now_s: float) -> None:
        """Choose the next step or stretch."""
        self._now_s = max(self._now_s, now_s)
        self._admit(now_s)
        self._step_start_s = now_s
        gpu = self.config.gpu
        while True:
            self._step_prefill = self._chunks()
            if self._step_prefill:
                self._steps = 1
                decoding = sum(not s.prefill_left for s in self._running) if self.config.chunked_prefill else 0
                prefill = sum(tokens for _, tokens in self._step_prefill)
                self._step_s = gpu.step_s(prefill, decoding) * self._prefill_pace
            elif self._running:
                decoding = len(self._running)
                self._step_s = gpu.step_s(0, decoding) * self._decode_pace
                self._steps = self._stretch(now_s)
            else:
                self._steps = decoding = 0
            if not decoding or self._grow(self._steps):
                return
            self._preempt(self._running[-1])

    def _stretch(self, now_s: float) -> int:
        """Decode steps until the batch changes: a sequence ends, blocks run short, or an adapter has loaded."""
        size = self.config.block_tokens
        steps = min(s.left for s in self._running)
        steps = min(steps, max(1, self._kv.blocks_free // len(self._running) * size))
        if self.config.each_token:
            steps = min(steps, size)  # blocks are taken when they are needed, so that KV usage reads true
        if self._waiting and (ready_at_s := self._adapters.next_ready_s(now_s)) < math.inf:
            steps = min(steps, max(1, math.ceil((ready_at_s - now_s) / self._step_s)))
        return steps

    def _admit(self, now_s: float) -> None:
        """Move waiting sequences into the batch, in order; those whose adapter cannot run now are passed over."""
        passed: list[_Sequence] = []
        while self._waiting and len(self._running) < self.config.slots_max:
            sequence = self._waiting[0]
            adapter = sequence.request.adapter
            if adapter is not None and not self._adapters.take(adapter, now_s):
                passed.append(self._waiting.popleft())
                continue
            if not self._hold(sequence):
                if adapter is not None:
                    self._adapters.release(adapter)
                break
            self._running.append(self._waiting.popleft())
        self._waiting.extendleft(reversed(passed))

    def _hold(self, sequence: _Sequence) -> bool:
        """Take the blocks of a sequence's prompt (and of what it had generated before a preemption)."""
        request, size = sequence.request, self.config.block_tokens
        hashes = request.block_hashes if self.config.prefix_cache else ()
        cached = min(self._kv.cached(hashes) * size, max(0, request.prompt_tokens - 1))
        private = max(0, self._blocks(sequence.tokens + 1) - len(hashes))
        if not self._kv.take(hashes, private, spare=len(self._running)):
            return False  # a block stays free for each running sequence, or the next steps would preempt
        sequence.held, sequence.private = hashes, private
        sequence.tokens_held = (len(hashes) + private) * size
        sequence.prefill_left = sequence.tokens - cached
        if sequence.reported == 0:
            sequence.cached = cached
            self._counters.prompt_tokens += request.prompt_tokens
            self._counters.cached_tokens += cached
        return True

    def _chunks(self) -> list[tuple[_Sequence, int]]:
        """What the next step prefills: (sequence, tokens) within the budget, oldest first."""
        chunked = self.config.chunked_prefill
        budget = self.config.step_tokens_max
        if chunked:
            budget -= sum(not s.prefill_left for s in self._running)
        chunks: list[tuple[_Sequence, int]] = []
        for sequence in self._running:
            if not sequence.prefill_left:
                continue
            if not chunked and chunks and sequence.prefill_left > budget:
                break
            tokens = min(sequence.prefill_left, max(1, budget)) if chunked else sequence.prefill_left
            chunks.append((sequence, tokens))
            budget -= tokens
            if budget <= 0:
                break
        return chunks

    def _grow(self, steps: int) -> bool:
        """Take blocks for `steps` more tokens of every decoding sequence; False when there are not enough."""
        size = self.config.block_tokens
        for sequence in self._running:
            if sequence.prefill_left:
                continue
            missing = sequence.tokens + steps - sequence.tokens_held
            if missing <= 0:
                continue
            blocks = -(-missing // size)
            if not self._kv.grow(blocks):
                return False
            sequence.private += blocks
            sequence.tokens_held += blocks * size
        return True

    def _preempt(self, sequence: _Sequence) -> None:
        """Put the youngest sequence back to the head of the queue; it will be prefilled again."""
        self._leave(sequence)
        self._counters.preempted += 1
        self._waiting.appendleft(sequence)

    def _leave(self, sequence: _Sequence) -> None:
        """Give back the slot, the blocks and the adapter."""
        self._running.remove(sequence)
        self._kv.release(sequence.held, sequence.private)
        sequence.held, sequence.private, sequence.tokens_held, sequence.prefill_left = (), 0, 0, 0
        if sequence.request.adapter is not None:
            self._adapters.release(sequence.request.adapter)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.config.block_tokens)
