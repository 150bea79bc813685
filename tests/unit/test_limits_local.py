"""A store in this process: asked seldom for large limits, exact to the unit all the same."""

from collections.abc import Sequence

import pytest

from gir.admit.limits import Limiter
from gir.admit.ports import Claim, Replies, Take
from gir.admit.reservation import LimitExceeded
from gir.clock import ManualClock
from gir.model.policy import LimitRule
from gir.stores.memory import MemoryStore
from tests.support.limiting import request


class CountingStore(MemoryStore):
    """Counts how often it is asked."""

    asked = 0

    def exchange_now(self, takes: Sequence[Take], claims: Sequence[Claim]) -> Replies:
        self.asked += 1
        return super().exchange_now(takes, claims)


def limiter(rule: LimitRule) -> tuple[Limiter, CountingStore]:
    clock = ManualClock()
    store = CountingStore(clock)
    return Limiter([rule], store, clock=clock), store


@pytest.mark.slow
def test_a_large_limit_is_drawn_in_bundles_and_kept_to_the_unit() -> None:
    limits, store = limiter(LimitRule(name="large", requests_per_min=65_536))
    for number in range(65_536):
        assert limits.reserve_now(request(number), 1_000.0) is not None
    with pytest.raises(LimitExceeded):
        limits.reserve_now(request("last"), 1_000.0)
    assert store.asked < 65_536 / 50


def test_a_small_limit_asks_each_time() -> None:
    limits, store = limiter(LimitRule(name="small", requests_per_min=100))
    for number in range(100):
        limits.reserve_now(request(number), 1_000.0)
    assert store.asked == 100


def test_places_are_held_ahead_and_never_beyond_the_limit() -> None:
    limits, store = limiter(LimitRule(name="places", concurrency_max=1_000))
    for number in range(1_000):
        limits.reserve_now(request(number), 1_000.0)
    with pytest.raises(LimitExceeded):
        limits.reserve_now(request("last"), 1_000.0)
    assert store.asked < 1_000 / 50


def test_whoever_was_refused_is_let_in_as_soon_as_the_limit_is_raised() -> None:
    limits, _ = limiter(LimitRule(name="small", requests_per_min=2))
    for number in range(2):
        limits.reserve_now(request(number), 1_000.0)
    with pytest.raises(LimitExceeded):
        limits.reserve_now(request("refused"), 1_000.0)
    limits.heed({"small": {"requests_per_min": 10}})
    assert limits.reserve_now(request("again"), 1_000.01) is not None
    (row,) = limits.rows(1_000.01)
    assert (row["limit"], row["remaining"]) == (10, 7)
    limits.heed({"small": {"requests_per_min": 3}})
    with pytest.raises(LimitExceeded):
        limits.reserve_now(request("more"), 1_000.02)
