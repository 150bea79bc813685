"""Service rates are learned from what happened, and what is no longer true fades."""

import pytest

from tier1_agent.rates import Line, Mean


def test_prompts_of_different_lengths_tell_fixed_cost_from_cost_per_token() -> None:
    line = Line()
    for tokens in (100.0, 3_000.0) * 20:
        line.observe(tokens, 0.05 + tokens * 1e-4)
    assert line.fixed_s == pytest.approx(0.05, rel=0.01)
    assert line.per_token_s == pytest.approx(1e-4, rel=0.01)


def test_prompts_of_one_length_put_all_time_down_to_the_tokens() -> None:
    line = Line()
    for _ in range(10):
        line.observe(1_000.0, 0.3)
    assert line.fixed_s == 0.0
    assert line.per_token_s == pytest.approx(3e-4)


def test_what_long_prompts_cost_is_still_known_after_hundreds_of_short_ones() -> None:
    line = Line()
    for _ in range(10):
        line.observe(3_000.0, 0.05 + 0.3)
    for index in range(300):
        line.observe(100.0 + index % 50, 0.06)
    assert line.expect_s(3_000.0) == pytest.approx(0.35, rel=0.15)


def test_a_pod_that_slows_down_is_noticed_within_a_few_dozen_requests() -> None:
    line = Line()
    for _ in range(50):
        line.observe(1_000.0, 0.1)
    for _ in range(40):
        line.observe(1_000.0, 0.4)
    assert line.expect_s(1_000.0) == pytest.approx(0.4, rel=0.2)


def test_one_stall_does_not_rewrite_what_is_known() -> None:
    line = Line()
    for _ in range(20):
        line.observe(1_000.0, 0.1)
    line.observe(1_000.0, 60.0)
    assert line.expect_s(1_000.0) < 0.2


def test_noise_never_makes_a_rate_negative() -> None:
    line = Line()
    for tokens, seconds in ((10.0, 0.5), (2_000.0, 0.1), (30.0, 0.4), (1_500.0, 0.05)):
        line.observe(tokens, seconds)
        assert line.per_token_s >= 0.0
        assert line.fixed_s >= 0.0


def test_fully_cached_prompts_do_not_make_a_token_look_dear() -> None:
    line = Line()
    for _ in range(20):
        line.observe(1.0, 0.07)
    assert line.expect_s(1.0) == pytest.approx(0.07)
    assert line.per_token_s < 2e-4


def test_prompts_without_tokens_are_no_division_by_zero() -> None:
    line = Line()
    line.observe(0.0, 0.1)
    assert line.expect_s(0.0) == pytest.approx(0.1)


def test_a_mean_is_unknown_until_something_was_seen() -> None:
    mean = Mean(0.5)
    assert mean.value is None
    mean.observe(4.0)
    mean.observe(2.0)
    assert mean.value == 3.0
