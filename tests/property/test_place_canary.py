"""A canary's share is what its weight says; raising the weight moves nobody off; everybody stays put."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gir.model.policy import CanaryRule, CanaryTarget, RuleMatch
from gir.place import Rewriter
from tests.support.placing import NOW_S, cluster, policy, pool, principal, view

pytestmark = pytest.mark.slow

MODELS = ("llama", "next", "wild")
FLEET = view(cluster("a", pools=[pool(model=name) for name in MODELS]))


def assigned(weights: tuple[int, ...], keys: int, name: str = "r") -> list[int]:
    targets = tuple(CanaryTarget(model=model, weight=weight) for model, weight in zip(MODELS, weights, strict=False))
    rules = policy(rewrites=(CanaryRule(name=name, matches=(RuleMatch(model="llama"),), targets=targets),))
    rewriter = Rewriter()
    return [rewriter.rewrite("llama", [], principal(), f"user-{key}", rules, FLEET, NOW_S).arm for key in range(keys)]


@pytest.mark.parametrize("percent", [1, 5, 10, 20, 33, 50, 80, 99])
def test_the_share_is_within_one_percent_at_ten_thousand_keys(percent):
    share = sum(assigned((100 - percent, percent), 10_000)) / 10_000
    assert share == pytest.approx(percent / 100, abs=0.01)


def test_three_targets_divide_as_weighed():
    arms = assigned((70, 20, 10), 10_000)
    assert [arms.count(arm) / 10_000 for arm in range(3)] == pytest.approx([0.7, 0.2, 0.1], abs=0.01)


@settings(max_examples=40)
@given(st.integers(0, 100), st.integers(0, 100))
def test_raising_the_weight_moves_nobody_off_the_canary(one, two):
    low, high = sorted((one, two))
    before, after = assigned((100 - low, low), 400), assigned((100 - high, high), 400)
    assert all(was <= now for was, now in zip(before, after, strict=True))


@settings(max_examples=40)
@given(st.tuples(*[st.integers(0, 100)] * 3).filter(any), st.integers(1, 2), st.integers(1, 100))
def test_with_several_canaries_nobody_leaves_the_one_that_was_raised(weights, which, more):
    raised = list(weights)
    raised[which] += more
    before, after = assigned(weights, 400), assigned(tuple(raised), 400)
    for was, now in zip(before, after, strict=True):
        assert now == which if was == which else now in (was, which) or was > which


def test_two_rules_draw_independently():
    one, two = assigned((50, 50), 4_000, "one"), assigned((50, 50), 4_000, "two")
    both = sum(a and b for a, b in zip(one, two, strict=True)) / 4_000
    assert both == pytest.approx(0.25, abs=0.03)
