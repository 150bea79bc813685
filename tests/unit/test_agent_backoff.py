"""How long an agent waits before it tries a router again, and what a herd of agents makes of it."""

import random

import pytest

from chaos.phantoms import peak_over_mean
from tier1_agent.beat_link import Backoff

AGENTS = 50


def herd(down_s: float, chance: random.Random) -> list[float]:
    """When each of fifty agents is back, if their router ends at 0 and answers again at `down_s`."""
    moments = []
    for _ in range(AGENTS):
        backoff = Backoff()
        backoff.reset()
        at_s = 0.0
        while at_s < down_s or at_s == 0.0:
            at_s += chance.uniform(0.0, backoff.window_s(refused=False))
        moments.append(at_s)
    return sorted(moments)


@pytest.mark.parametrize("down_s", [0.5, 1.5, 3.0, 8.0, 30.0])
def test_a_restarted_router_is_met_by_a_stream_of_agents_and_not_by_a_crowd(down_s: float) -> None:
    chance = random.Random(7)
    herds = [herd(down_s, chance) for _ in range(200)]
    peaks = sorted(map(peak_over_mean, herds))
    spreads = sorted(moments[-1] - moments[0] for moments in herds)
    assert peaks[150] <= 3.0
    assert spreads[10] >= 5.0


def test_a_router_never_met_is_looked_for_often_at_first_and_a_refusal_waits_long() -> None:
    backoff = Backoff()
    assert [backoff.window_s(refused=False) for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert backoff.window_s(refused=True) == 30.0


def test_the_window_of_a_router_once_met_never_shrinks() -> None:
    backoff = Backoff()
    backoff.reset()
    assert [backoff.window_s(refused=False) for _ in range(3)] == [8.0, 10.0, 10.0]
    backoff.reset()
    assert backoff.window_s(refused=False) == 8.0
