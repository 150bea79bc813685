"""The rate counter alone: no window above the limit, nothing negative, and Retry-After means what it says."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gir.admit.limits import Limiter
from gir.admit.meter import Meter
from gir.admit.ports import Rate
from gir.admit.reservation import LimitExceeded, Reservation, tokens_used
from gir.clock import ManualClock
from gir.model.policy import LimitRule
from gir.model.request import Usage
from gir.stores.memory import MemoryStore
from tests.support.limiting import request

gaps = st.floats(0.0, 40.0)
takes = st.lists(st.tuples(gaps, st.integers(1, 12), st.integers(0, 12)), min_size=1, max_size=40)


@given(steps=takes, limit=st.integers(1, 40), burst=st.integers(1, 40))
def test_no_window_and_no_burst_above_the_bound(steps: list[tuple[float, int, int]], limit: int, burst: int) -> None:
    rate = Rate(limit, 60.0, min(burst, limit))
    meter = Meter()
    now_s = 500.0
    taken: list[tuple[float, int]] = []
    for gap_s, need, more in steps:
        now_s += gap_s
        answer = meter.take(rate, need, need + more, now_s)
        assert answer.units == 0 or need <= answer.units <= need + more
        taken.append((now_s, answer.units))
        assert sum(units for at_s, units in taken if at_s > now_s - 60.0) <= limit
        for since_s, _ in taken:
            inside = sum(units for at_s, units in taken if since_s <= at_s <= now_s)
            assert inside <= rate.burst + limit * (now_s - since_s) / 60.0 + 1e-3


@given(steps=takes, limit=st.integers(1, 40))
def test_retry_after_is_enough_and_not_too_long(steps: list[tuple[float, int, int]], limit: int) -> None:
    rate = Rate(limit, 60.0, limit)
    meter = Meter()
    now_s = 500.0
    for gap_s, asked, more in steps:
        now_s += gap_s
        need = min(asked, limit)
        answer = meter.take(rate, need, need + more, now_s)
        if answer.units == 0:
            assert 0.0 < answer.retry_after_s <= 61.0
            early = meter.take(rate, need, need, now_s + max(0.0, answer.retry_after_s - 1.01))
            assume(early.units == 0)
            assert meter.take(rate, need, need, now_s + answer.retry_after_s + 1e-6).units == need
            return


@given(
    corrections=st.lists(st.tuples(st.integers(0, 130), st.integers(-20, 20)), max_size=30), limit=st.integers(1, 50)
)
def test_corrections_never_make_it_negative(corrections: list[tuple[int, int]], limit: int) -> None:
    rate = Rate(limit, 60.0, limit)
    meter = Meter()
    for segment in range(60, 130):
        meter.take(rate, 1, 2, float(segment))
        meter.correct(rate, sorted(pair for pair in corrections if pair[0] == segment - 7), float(segment))
        assert meter.total >= 0
        assert meter.take(rate, 0, 0, float(segment)).remaining <= limit


RULES = [
    LimitRule(name="requests", requests_per_min=7),
    LimitRule(name="tokens", tokens_per_min=2_000, output_token_weight=2.0),
    LimitRule(name="places", concurrency_max=3, per=("model",)),
]


class LimiterMachine(RuleBasedStateMachine):
    """Requests come, end well, fail, are settled twice, time passes: the store's books are those of this model."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.limiter = Limiter(RULES, MemoryStore(self.clock), clock=self.clock)
        self.open: list[tuple[Reservation, float]] = []
        self.closed: list[Reservation] = []
        self.tokens: list[tuple[float, int]] = []
        self.number = 0
        self.retries_s: list[float] = []

    @rule(prompt=st.integers(1, 4_000), output=st.integers(0, 400))
    def ask(self, prompt: int, output: int) -> None:
        self.number += 1
        asked = request(self.number, prompt_bytes=prompt, output_tokens_max=output)
        try:
            reservation = self.limiter.reserve_now(asked, self.clock.monotonic_s())
        except LimitExceeded as error:
            self.retries_s.append(error.retry_after_s or 0.0)
            return
        assert reservation is not None
        assert self.limiter.reserve_now(asked, self.clock.monotonic_s()) is reservation, "one request, one reservation"
        self.open.append((reservation, self.clock.monotonic_s()))

    @rule(pick=st.integers(0, 9), prompt=st.integers(1, 900), output=st.integers(0, 300), started=st.booleans())
    def settle(self, pick: int, prompt: int, output: int, started: bool) -> None:
        if not self.open:
            return
        reservation, at_s = self.open.pop(pick % len(self.open))
        usage = Usage(prompt_tokens=prompt, completion_tokens=output)
        self.limiter.settle(reservation, usage, started=started, now_s=self.clock.monotonic_s())
        self.closed.append(reservation)
        if started:
            self.tokens.append((at_s, tokens_used(RULES[1], usage)))

    @rule(pick=st.integers(0, 9))
    def settle_again(self, pick: int) -> None:
        if self.closed:
            usage = Usage(prompt_tokens=999, completion_tokens=999)
            again = self.closed[pick % len(self.closed)]
            self.limiter.settle(again, usage, started=True, now_s=self.clock.monotonic_s())

    @rule(step_s=st.floats(0.01, 30.0))
    def wait(self, step_s: float) -> None:
        self.clock.advance_s(step_s)

    @invariant()
    def every_refusal_says_when_to_come_back(self) -> None:
        assert all(retry_s > 0.0 for retry_s in self.retries_s)

    @invariant()
    def places_are_those_of_open_requests(self) -> None:
        assert len(self.open) <= 3

    @invariant()
    def every_token_is_counted_once(self) -> None:
        lease = self.limiter._counters.rates.get("tokens:team:tokens")
        if lease is None:
            return
        now_s = self.clock.monotonic_s()
        store = self.limiter._local
        assert store is not None
        left = store.exchange_now([lease.draw(now_s, 0)], []).taken[0].remaining
        surely = self.tokens_since(now_s - 59.0)
        possibly = self.tokens_since(now_s - 62.0)
        assert left >= 2_000 - possibly, "counted twice"
        assert left <= max(0, 2_000 - surely), "not counted"

    def tokens_since(self, since_s: float) -> int:
        """Tokens reserved by open requests or used by settled ones since then."""
        held = [(at_s, units) for one, at_s in self.open for use, units, _ in one.spent if use.kind == "tokens"]
        return sum(units for at_s, units in [*held, *self.tokens] if at_s > since_s)


TestLimiterMachine = LimiterMachine.TestCase
pytestmark = pytest.mark.slow
