"""One pod as the picker knows it: what was declared, what was scraped, what this agent itself has running there."""

import enum
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import msgspec
import xxhash

from gir.model.ids import ModelId, PodId
from tier1_agent.rates import Line, Mean
from tier1_agent.signals import Signals

SLOTS_UNDECLARED = 8
"""First guess for a pod whose slots nobody declared; scrapes correct it."""
SLOTS_LEARNED_MAX = 1_024
_KV_FULL = 0.95
_STEADY_SCRAPES = 4


class PodSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One engine endpoint as discovery found it."""

    id: PodId
    url: str
    model: ModelId
    slots: int | None = None
    """Requests it runs at once (vLLM --max-num-seqs); None: learned."""
    metrics_url: str | None = None
    """Page with engine metrics; None: only what is in flight is known."""
    adapters_resident: frozenset[ModelId] = frozenset()
    adapters_loadable: frozenset[ModelId] = frozenset()
    context_tokens_max: int | None = None
    labels: Mapping[str, str] = {}
    api_key: str | None = None
    """Credential the engine wants as a bearer token."""


class PodState(enum.Enum):
    """May it get work?"""

    WARMING = "warming"
    """Listed, and never yet heard from."""
    READY = "ready"
    STALE = "stale"
    """Not heard from for too long, or refuses connections: no work while others have news."""
    BARRED = "barred"
    """Heard from, but its answers fail; back after a pause that doubles."""
    GONE = "gone"
    """No longer listed, or restarted: finishes what it has."""


class Ticket:
    """One request on one pod: opened by `Pool.dispatched`, closed exactly once by `Pool.finished`."""

    __slots__ = (
        "blocks_before",
        "cached_tokens",
        "closed",
        "dispatched_s",
        "expected_first_s",
        "first_token_s",
        "hashes",
        "load",
        "pod",
        "prompt_bytes",
        "room",
        "streams",
        "uncached_tokens",
    )

    def __init__(self, pod: "Pod", now_s: float) -> None:
        self.pod = pod
        self.dispatched_s = now_s
        self.load = pod.load
        """Requests there before this one."""
        self.first_token_s: float | None = None
        self.expected_first_s = now_s
        self.cached_tokens = 0.0
        """What the index promised."""
        self.uncached_tokens = 0.0
        self.prompt_bytes = 0
        self.hashes: tuple[int, ...] = ()
        self.blocks_before = 0
        self.room = True
        """A slot and memory were free: the time to its first token measures prefill, not waiting."""
        self.streams = True
        self.closed = False


class Pod:
    """Mutable record of one incarnation of one pod. Only its `Pool` writes it."""

    __slots__ = (
        "_slots_steady",
        "adapters_listed",
        "adapters_max",
        "adapters_seen",
        "believed",
        "bit",
        "faults_in_row",
        "foreign",
        "good_in_row",
        "heard_at_s",
        "in_flight",
        "incarnation",
        "kv_tokens_since",
        "misses_in_row",
        "pending",
        "pending_tokens",
        "prefill",
        "prefill_since_s",
        "ramp_from_s",
        "reports_cached",
        "resume_at_s",
        "seed",
        "signals",
        "slots",
        "spec",
        "state",
        "token_gap_s",
        "waiting_foreign",
    )

    def __init__(self, spec: PodSpec, bit: int, incarnation: int = 0) -> None:
        self.spec = spec
        self.bit = bit
        """Its place in the pool's arrays and its bit in owner masks."""
        self.incarnation = incarnation
        self.seed = xxhash.xxh3_64_intdigest(spec.id.encode())
        self.state = PodState.WARMING
        self.signals: Signals | None = None
        self.heard_at_s = float("-inf")
        self.good_in_row = 0
        self.misses_in_row = 0
        """Scrapes that failed, one after the other."""
        self.faults_in_row = 0
        """Requests that failed, one after the other."""
        self.resume_at_s = 0.0
        self.ramp_from_s: float | None = None
        self.slots = spec.slots or SLOTS_UNDECLARED
        self._slots_steady = (0, 0)
        self.in_flight = 0
        self.pending: dict[Ticket, None] = {}
        """Requests without a first token, oldest first."""
        self.pending_tokens = 0.0
        self.prefill_since_s = float("-inf")
        """When the prompt in progress began."""
        self.foreign = 0.0
        """Requests of other senders, as of the last scrape."""
        self.waiting_foreign = 0.0
        self.kv_tokens_since = 0.0
        """Prompt tokens sent since the last scrape, which its KV usage cannot show yet."""
        self.prefill = Line()
        self.believed: tuple[float, float] | None = None
        """Fixed seconds and seconds per token, in the light of what was measured on other pods."""
        self.token_gap_s = Mean()
        self.reports_cached = False
        self.adapters_listed = spec.adapters_resident
        self.adapters_seen: OrderedDict[ModelId, None] = OrderedDict()
        """Adapters in use lately, most recent last."""
        self.adapters_max: int | None = None

    def __repr__(self) -> str:
        return f"<Pod {self.spec.id}#{self.incarnation} {self.state.value} {self.in_flight}/{self.slots}>"

    @property
    def load(self) -> float:
        """Requests there: own ones exactly, others' as of the last scrape."""
        return self.in_flight + self.foreign

    @property
    def kv_usage(self) -> float | None:
        """Share of KV memory in use, with what was sent since the last scrape; None when the engine does not say."""
        signals = self.signals
        if signals is None or signals.kv_usage is None:
            return None
        since = self.kv_tokens_since / signals.kv_tokens_total if signals.kv_tokens_total else 0.0
        return signals.kv_usage + since

    def ramp(self, now_s: float, ramp_s: float) -> float:
        """Share of its normal traffic it may get after coming back: a tenth at first, all of it after `ramp_s`."""
        if self.ramp_from_s is None:
            return 1.0
        return min(1.0, max(0.1, (now_s - self.ramp_from_s) / ramp_s))

    def reborn(self) -> "Pod":
        """The next incarnation: same hardware, so its rates stay; empty caches, nothing in flight."""
        new = Pod(self.spec, self.bit, self.incarnation + 1)
        new.prefill, new.token_gap_s, new.believed = self.prefill, self.token_gap_s, self.believed
        return new

    def respec(self, spec: PodSpec) -> None:
        """The same endpoint is now declared differently."""
        if spec.slots is not None and spec.slots != self.spec.slots:
            self.slots = spec.slots
        self.spec = spec
        self.list_adapters(frozenset())

    def list_adapters(self, names: frozenset[ModelId]) -> None:
        """Adapters declared resident or named by the engine's own list: as good as seen in use, and they stay."""
        self.adapters_listed = names | self.spec.adapters_resident

    def holds(self, adapter: ModelId) -> bool:
        """Whether the adapter is loaded there, as far as can be known."""
        return adapter in self.adapters_seen or adapter in self.adapters_listed

    def learn_slots(self, running: int, waiting: int, kv_usage: float | None) -> None:
        """Correct `slots` by what the engine really runs at once.

        A queue proves a limit only when the batch has stopped growing (an engine in the middle of a long step has a
        queue too) or when KV memory is full.
        """
        declared = self.spec.slots
        if not waiting:
            self._slots_steady = (0, 0)
            if declared is not None:
                self.slots = min(declared, self.slots + 1)
            elif running >= self.slots:
                self.slots = min(SLOTS_LEARNED_MAX, max(running, self.slots + max(1, self.slots // 4)))
            return
        most, scrapes = self._slots_steady
        self._slots_steady = (max(most, running), 1 if running > most else scrapes + 1)
        full = kv_usage is not None and kv_usage >= _KV_FULL
        if running and (full or self._slots_steady[1] >= _STEADY_SCRAPES):
            limit = self._slots_steady[0]
            self.slots = limit if declared is None else min(limit, declared)

    def ran_beside(self, load: float) -> None:
        """A request began at once although `load` others were there: so many slots there are at least."""
        if self.spec.slots is None:
            self.slots = max(self.slots, min(SLOTS_LEARNED_MAX, int(load) + 1))

    def note_adapters(self, names: Iterable[ModelId], resident_max: int | None) -> None:
        """Adapters seen in use are resident; the least recently used one leaves when there are more than fit."""
        if resident_max is not None:
            self.adapters_max = resident_max
        for name in names:
            self.adapters_seen[name] = None
            self.adapters_seen.move_to_end(name)
        limit = self.adapters_max or 1
        while len(self.adapters_seen) > limit:
            self.adapters_seen.popitem(last=False)

    def learn_from_counters(self, before: Signals, after: Signals, now_s: float) -> None:
        """First rates of a pod whose answers do not stream: the engine's own sums, between two scrapes."""
        tokens = _delta(before.prefill_tokens_sum, after.prefill_tokens_sum)
        seconds = _delta(before.prefill_s_sum, after.prefill_s_sum)
        if tokens and seconds:
            self.prefill.observe(tokens, seconds, now_s)
        gaps, gap_s = _delta(before.token_gaps, after.token_gaps), _delta(before.token_gap_s_sum, after.token_gap_s_sum)
        if gaps and gap_s:
            self.token_gap_s.observe(gap_s / gaps)


def _delta(before: float | None, after: float | None) -> float:
    return 0.0 if before is None or after is None else max(0.0, after - before)
