"""All pods serving one base model: the one writer of their records, and the arrays that `picker` reads.

A pick must cost microseconds with hundreds of pods, so nothing is computed at pick time that an event could have
computed before. Each pod has a place in four lists (seconds throughout, weights applied):

    cost = static + max(clear_at - now, floor) + uncached_tokens x per_token

`static` holds what does not depend on the request (queue, running, KV, fixed overhead; infinite when the pod may not be
picked); `clear_at` is when the prefill work ahead will be done; `floor` is the part of the wait that does not pass by
itself (work behind the prompt in progress, no free slot). Every event refreshes one place. Own requests are counted at
once and exactly; other senders' requests are what the last scrape saw beyond them.
"""

import enum

import msgspec

from gir.model.ids import ModelId
from gir.model.request import Usage
from tier1_agent.pods import Pod, PodSpec, PodState, Ticket
from tier1_agent.prefix import PrefixIndex
from tier1_agent.scorers import KV_S, Weights, kv_pressure, queue_s, running_s
from tier1_agent.signals import Signals, restarted
from tier1_agent.traffic import Traffic

INFINITE = float("inf")
MISSES_MAX = 3
FAULTS_MAX = 3
BAR_MAX_S = 30.0
ANSWERED_S = 10.0
"""Without fresh news, an answer this recent still makes own counts worth something."""


class Mode(enum.Enum):
    """What the picker can rely on; each step down relies on less and none of them halts."""

    FULL = "full"
    IN_FLIGHT = "in_flight"
    """No pod may be picked by what is known of it, though some still answer: own counts only."""
    ROUND_ROBIN = "round_robin"
    """No news and no answers: everything known may be wrong, so nobody is preferred."""


class PoolSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool needs of the configuration."""

    weights: Weights
    round_robin: bool = False
    stale_after_s: float = 0.75
    """No good scrape for this long: excluded."""
    ramp_s: float = 10.0
    """Slow start of a pod that came back."""
    index_bytes_max: int = 64 * 1024 * 1024
    concurrent_max_per_pod: int | None = None


class Pool:
    """Pods of one base model and their arrays. Methods are events; each leaves the arrays consistent."""

    def __init__(self, model: ModelId, settings: PoolSettings) -> None:
        self.model = model
        self.settings = settings
        self.mode = Mode.ROUND_ROBIN
        self.pods: list[Pod] = []
        self.static_s: list[float] = []
        self.clear_at_s: list[float] = []
        self.floor_s: list[float] = []
        self.per_token_s: list[float] = []
        self.index = PrefixIndex(settings.index_bytes_max)
        self.turn = 0
        """Place whose turn it is in round robin."""
        self.context_tokens_min: int | None = None
        """Shortest context any pod declares: prompts below it fit everywhere."""
        self.traffic = Traffic()
        self._answered_at_s = -INFINITE
        self.evict_price: list[float] = []

    def __repr__(self) -> str:
        return f"<Pool {self.model} {self.mode.value}: {' '.join(map(repr, self.pods))}>"

    @property
    def present(self) -> bool:
        """Whether any pod is listed."""
        return any(pod.state is not PodState.GONE for pod in self.pods)

    @property
    def degraded(self) -> bool:
        """Whether picks rely on less than they should."""
        return self.mode is not Mode.FULL

    # Members.

    def add(self, spec: PodSpec, *, ramp_from_s: float | None = None) -> Pod:
        """A new pod; it takes the place of one that has gone, if there is such a place."""
        bit = next((p.bit for p in self.pods if p.state is PodState.GONE), len(self.pods))
        pod = Pod(spec, bit)
        pod.ramp_from_s = ramp_from_s
        if bit == len(self.pods):
            self.pods.append(pod)
            for row in (self.static_s, self.clear_at_s, self.floor_s, self.per_token_s, self.evict_price):
                row.append(0.0)
        self.pods[bit] = pod
        self.index.add(bit, None)
        self.refresh(pod)
        self._measure_contexts()
        return pod

    def respec(self, pod: Pod, spec: PodSpec) -> None:
        """The same endpoint is now declared differently."""
        pod.respec(spec)
        self.refresh(pod)
        self._measure_contexts()

    def _measure_contexts(self) -> None:
        declared = [pod.spec.context_tokens_max for pod in self.pods if pod.state is not PodState.GONE]
        self.context_tokens_min = min((limit for limit in declared if limit is not None), default=None)

    def remove(self, pod: Pod, now_s: float) -> None:
        """No new work; what runs there finishes."""
        self.index.remove(pod.bit)
        self._exclude(pod, PodState.GONE, now_s)
        self._measure_contexts()

    def restart(self, pod: Pod) -> Pod:
        """The engine behind `pod` is a new process: its cache and its load are gone, its speed is not."""
        new = pod.reborn()
        pod.state = PodState.GONE
        self.pods[pod.bit] = new
        self.index.add(pod.bit, None)
        self.refresh(new)
        return new

    # News.

    def scraped(self, pod: Pod, signals: Signals | None, now_s: float, *, own_at_start: int = 0) -> Pod:
        """A good scrape (None: alive, but it tells nothing). Returns the pod: a new one if its engine restarted.

        `own_at_start` is `pod.in_flight` when the scrape was sent: what ended meanwhile is not somebody else's work.
        """
        if signals is not None and pod.signals is not None and restarted(pod.signals, signals):
            pod = self.restart(pod)
            own_at_start = 0
        pod.misses_in_row = 0
        pod.good_in_row += 1
        pod.heard_at_s = now_s
        if pod.state is PodState.WARMING:
            pod.state = PodState.READY
        elif pod.state is PodState.STALE and pod.good_in_row >= 2:
            pod.state = PodState.READY
            pod.ramp_from_s = now_s
        if signals is not None:
            self._take_signals(pod, signals, max(pod.in_flight, own_at_start), now_s)
        self.refresh(pod)
        if self.mode is not Mode.FULL:
            self._choose_mode(now_s)
        return pod

    def _take_signals(self, pod: Pod, signals: Signals, own: int, now_s: float) -> None:
        before, pod.signals = pod.signals, signals
        running, waiting = signals.running, signals.waiting or 0
        pod.kv_tokens_since = waiting * (self.traffic.uncached_tokens.value or 0.0)
        if running is not None:
            foreign = 0.5 * pod.foreign + 0.5 * max(0.0, running + waiting - own)
            pod.foreign = foreign if foreign >= 0.1 else 0.0
            pod.learn_slots(running, waiting, signals.kv_usage)
        pod.waiting_foreign = min(pod.foreign, float(max(0, waiting - len(pod.pending))))
        if signals.adapters is not None:
            pod.note_adapters(map(ModelId, signals.adapters.active), signals.adapters.resident_max)
        if signals.kv_tokens_total is not None:
            self.index.set_capacity(pod.bit, int(signals.kv_tokens_total / self.traffic.tokens_per_block))
        if before is not None and not pod.prefill.count:
            pod.learn_from_counters(before, signals, now_s)

    def missed(self, pod: Pod, now_s: float) -> None:
        """A scrape failed."""
        pod.good_in_row = 0
        pod.misses_in_row += 1
        if pod.misses_in_row >= MISSES_MAX and pod.state in (PodState.READY, PodState.BARRED):
            self._exclude(pod, PodState.STALE, now_s)

    def fault(self, pod: Pod, now_s: float) -> None:
        """A request failed there for the pod's own fault (refused, reset, 5xx, truncated).

        Pods that fail fast look idle, so a few in a row bar the pod; each further fault doubles the pause.
        """
        pod.faults_in_row += 1
        over = pod.faults_in_row - FAULTS_MAX
        if over >= 0 and pod.state is PodState.READY:
            pod.resume_at_s = now_s + min(BAR_MAX_S, 2.0 ** min(over, 10))
            self._exclude(pod, PodState.BARRED, now_s)

    def _exclude(self, pod: Pod, state: PodState, now_s: float) -> None:
        """No new work for `pod`; if it was the last one, the ladder is stepped down at once, for nothing may halt."""
        pod.state = state
        self.refresh(pod)
        self._choose_mode(now_s)

    def tick(self, now_s: float) -> None:
        """Once per scrape period: staleness, mode, means over pods, silent prefills; refreshes every place."""
        for pod in self.pods:
            if pod.state is PodState.READY and now_s - pod.heard_at_s > self.settings.stale_after_s:
                pod.state = PodState.STALE
                pod.good_in_row = 0
            elif pod.state is PodState.BARRED and now_s >= pod.resume_at_s:
                pod.state = PodState.READY
                pod.ramp_from_s = now_s
            if pod.ramp_from_s is not None and now_s - pod.ramp_from_s >= self.settings.ramp_s:
                pod.ramp_from_s = None
            self._settle_silent(pod, now_s)
        self._choose_mode(now_s)
        self.traffic.compare(self.pods, now_s)
        self._price_evictions(now_s)
        for pod in self.pods:
            self.refresh(pod)

    def _choose_mode(self, now_s: float) -> None:
        """How far down the ladder we are; who may be picked depends on it."""
        before = self.mode
        if any(pod.state is PodState.READY for pod in self.pods):
            self.mode = Mode.FULL
        else:
            self.mode = Mode.IN_FLIGHT if now_s - self._answered_at_s < ANSWERED_S else Mode.ROUND_ROBIN
        if self.mode is not before:
            for pod in self.pods:
                self.refresh(pod)

    def _settle_silent(self, pod: Pod, now_s: float) -> None:
        """Requests that do not stream never show their first token: believe the estimate once it has passed."""
        for ticket in [t for t in pod.pending if not t.streams and t.expected_first_s <= now_s]:
            self._prefilled(ticket, now_s)

    def _price_evictions(self, now_s: float) -> None:
        """How much of its prefill time an evicted token will cost again.

        Nothing while the pod has room; else as often as tokens are reused in this pool, half for the pod whose victim
        is the oldest, all of it for the freshest (and for any, while another pod has room).
        """
        present = [pod.bit for pod in self.pods if pod.state is not PodState.GONE]
        victims = {bit: at_s for bit in present if (at_s := self.index.victim_at_s(bit)) is not None}
        oldest_s = min(victims.values(), default=now_s)
        span_s = max(now_s - oldest_s, 1e-3)
        reuse, room = self.traffic.reuse.value or 0.0, len(victims) < len(present)
        for bit in present:
            at_s = victims.get(bit)
            freshness = 1.0 if room or at_s is None else (at_s - oldest_s) / span_s
            self.evict_price[bit] = 0.0 if at_s is None else reuse * (0.5 + 0.5 * freshness)

    # Requests.

    def dispatched(
        self,
        pod: Pod,
        now_s: float,
        *,
        tokens: float,
        hashes: tuple[int, ...] = (),
        blocks_cached: int = 0,
        prompt_bytes: int = 0,
        adapter: ModelId | None = None,
        streams: bool = True,
    ) -> Ticket:
        """A request goes to `pod`: counted at once. `blocks_cached` is what the index promised."""
        ticket = Ticket(pod, now_s)
        ticket.cached_tokens = min(blocks_cached * self.traffic.tokens_per_block, tokens)
        ticket.uncached_tokens = tokens - ticket.cached_tokens
        ticket.prompt_bytes, ticket.hashes, ticket.blocks_before = prompt_bytes, hashes, blocks_cached
        ticket.streams = streams
        usage = pod.kv_usage
        ticket.room = pod.load < pod.slots and (usage is None or usage < 1.0)
        ticket.expected_first_s = self.traffic.first_token_at_s(ticket, now_s)
        if not pod.pending:
            pod.prefill_since_s = now_s
        pod.in_flight += 1
        pod.pending[ticket] = None
        pod.pending_tokens += ticket.uncached_tokens
        pod.kv_tokens_since += ticket.uncached_tokens
        self.traffic.dispatched(ticket, tokens)
        if hashes and pod.state is not PodState.GONE:
            self.index.learn(pod.bit, hashes, now_s)
        if adapter is not None:
            pod.note_adapters((adapter,), None)
        self.refresh(pod)
        return ticket

    def first_token(self, ticket: Ticket, now_s: float) -> None:
        """The first token of a stream came: the pod's prefill rate, measured beside whatever else it does."""
        if ticket.closed or ticket.first_token_s is not None:
            return
        pod = ticket.pod
        ticket.first_token_s = self._answered_at_s = now_s
        took_s = now_s - max(pod.prefill_since_s, ticket.dispatched_s)
        if took_s <= 2.0 * pod.prefill.expect_s(ticket.uncached_tokens):
            pod.ran_beside(ticket.load)
        if self._prefilled(ticket, now_s) and ticket.room:
            pod.prefill.observe(ticket.uncached_tokens, took_s, now_s)
        self.refresh(pod)

    def _prefilled(self, ticket: Ticket, now_s: float) -> bool:
        """Take the ticket off the prefill backlog; False when it was off already."""
        pod = ticket.pod
        if ticket not in pod.pending:
            return False
        del pod.pending[ticket]
        pod.pending_tokens = pod.pending_tokens - ticket.uncached_tokens if pod.pending else 0.0
        pod.prefill_since_s = now_s
        return True

    def finished(self, ticket: Ticket, now_s: float, *, ok: bool, usage: Usage | None = None) -> None:
        """The request has left the pod, one way or another. A second call changes nothing."""
        if ticket.closed:
            return
        ticket.closed = True
        pod = ticket.pod
        pod.in_flight -= 1
        if self._prefilled(ticket, now_s) and not ok and pod.state is not PodState.GONE:
            self.index.forget(pod.bit, ticket.hashes, beyond=ticket.blocks_before)
        if ok:
            self._answered_at_s = now_s
            pod.faults_in_row = 0
            if usage is not None:
                self._take_usage(ticket, usage, now_s)
        self.refresh(pod)

    def _take_usage(self, ticket: Ticket, usage: Usage, now_s: float) -> None:
        pod = ticket.pod
        self.traffic.finished(ticket, usage, now_s)
        # Many engines leave cached tokens out, which reads as zero: believed only from those that have named some.
        pod.reports_cached = pod.reports_cached or usage.cached_tokens > 0
        if pod.reports_cached and ticket.hashes and pod.state is not PodState.GONE:
            self.index.judge(pod.bit, ticket.blocks_before, usage.cached_tokens / self.traffic.tokens_per_block)

    # The arrays.

    def refresh(self, pod: Pod) -> None:
        """Recompute the pod's place in the arrays."""
        bit, weights, traffic = pod.bit, self.settings.weights, self.traffic
        if self.pods[bit] is not pod:
            return  # an earlier incarnation, finishing its requests
        if not self.eligible(pod):
            self.static_s[bit] = INFINITE
            return
        load, slots, fixed_s, prefill_s = pod.load, pod.slots, traffic.fixed_s(pod), traffic.prefill_s(pod)
        pressure = weights.kv_cache * kv_pressure(pod.kv_usage)
        work = weights.expected_work
        self.per_token_s[bit] = prefill_s * (
            work + weights.prefix + weights.lru * self.evict_price[bit]
        ) + pressure * traffic.kv_token_s(pod)
        self.static_s[bit] = (
            weights.queue * queue_s(max(load - slots, pod.waiting_foreign, 0.0), slots)
            + weights.running_requests * running_s(min(load, slots), slots)
            + KV_S * pressure
            + work * fixed_s
        )
        backlog_s = traffic.backlog_s(pod)
        head = next(iter(pod.pending), None)
        head_s = fixed_s + head.uncached_tokens * prefill_s if head is not None else 0.0
        self.clear_at_s[bit] = work * (pod.prefill_since_s + backlog_s if head is not None else 0.0)
        self.floor_s[bit] = work * max(backlog_s - head_s, traffic.slot_wait_s(pod))

    def eligible(self, pod: Pod) -> bool:
        """May it be picked now, whatever the request?"""
        cap = self.settings.concurrent_max_per_pod
        if pod.state is PodState.GONE or (cap is not None and pod.in_flight >= cap):
            return False
        return pod.state is PodState.READY or self.mode is not Mode.FULL

    def room(self) -> int | None:
        """Requests that pods below their cap could still take, in sum; None without a cap."""
        cap = self.settings.concurrent_max_per_pod
        if cap is None:
            return None
        return sum(cap - pod.in_flight for pod in self.pods if self.eligible(pod))
