"""The placement bench in its quick form: every bar is met, so that a change that spoils placement fails the suite."""

import pytest

from tests.perf import placement, placement_speed

CROWDED = 2.0
"""The suite runs on all cores at once; what a plan takes is judged strictly by the bench alone."""


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["conversations", "cost", "canary"])
def test_placement_meets_its_bars(scenario):
    report = placement.run([scenario], quick=True, say=lambda _: None)
    assert report["missed"] == []


@pytest.mark.slow
@pytest.mark.parametrize("clusters", ["16", "1000"])
def test_a_plan_takes_microseconds(clusters):
    assert placement_speed.plan_us(int(clusters), requests=200) <= CROWDED * placement.PLAN_US_MAX[clusters]
