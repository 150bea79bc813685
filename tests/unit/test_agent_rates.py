"""Service rates are learned from what happened, and what is no longer true fades."""

import pytest

from tier1_agent.rates import HALF_LIFE_S, Line, Mean, shrink


def test_prompts_of_different_lengths_tell_fixed_cost_from_cost_per_token() -> None:
    line = Line()
    for tokens in (100.0, 3_000.0) * 20:
        line.observe(tokens, 0.05 + tokens * 1e-4, 0.0)
    assert line.fixed_s == pytest.approx(0.05, rel=0.01)
    assert line.per_token_s == pytest.approx(1e-4, rel=0.01)


def test_prompts_of_one_length_put_all_time_down_to_the_tokens() -> None:
    line = Line()
    for _ in range(10):
        line.observe(1_000.0, 0.3, 0.0)
    assert line.fixed_s == 0.0
    assert line.per_token_s == pytest.approx(3e-4)


def test_what_long_prompts_cost_is_still_known_after_hundreds_of_short_ones() -> None:
    line = Line()
    for _ in range(10):
        line.observe(3_000.0, 0.05 + 0.3, 0.0)
    for index in range(300):
        line.observe(100.0 + index % 50, 0.06, 0.0)
    assert line.expect_s(3_000.0) == pytest.approx(0.35, rel=0.15)


def test_a_pod_that_slows_down_is_noticed_within_a_few_dozen_requests() -> None:
    line = Line()
    for _ in range(50):
        line.observe(1_000.0, 0.1, 0.0)
    for _ in range(40):
        line.observe(1_000.0, 0.4, 0.0)
    assert line.expect_s(1_000.0) == pytest.approx(0.4, rel=0.2)


def test_one_stall_does_not_rewrite_what_is_known() -> None:
    line = Line()
    for _ in range(20):
        line.observe(1_000.0, 0.1, 0.0)
    line.observe(1_000.0, 60.0, 0.0)
    assert line.expect_s(1_000.0) < 0.2


def test_noise_never_makes_a_rate_negative() -> None:
    line = Line()
    for tokens, seconds in ((10.0, 0.5), (2_000.0, 0.1), (30.0, 0.4), (1_500.0, 0.05)):
        line.observe(tokens, seconds, 0.0)
        assert line.per_token_s >= 0.0
        assert line.fixed_s >= 0.0


def test_fully_cached_prompts_do_not_make_a_token_look_dear() -> None:
    line = Line()
    for _ in range(20):
        line.observe(1.0, 0.07, 0.0)
    assert line.expect_s(1.0) == pytest.approx(0.07)
    assert line.per_token_s < 2e-4


def test_prompts_without_tokens_are_no_division_by_zero() -> None:
    line = Line()
    line.observe(0.0, 0.1, 0.0)
    assert line.expect_s(0.0) == pytest.approx(0.1)


def test_a_mean_is_unknown_until_something_was_seen() -> None:
    mean = Mean(0.5)
    assert mean.value is None
    mean.observe(4.0)
    mean.observe(2.0)
    assert mean.value == 3.0


def test_differences_within_the_noise_are_not_believed() -> None:
    assert shrink([1.0, 1.1, 0.9, 1.05], [0.02] * 4) == pytest.approx([1.0125] * 4)


def test_differences_far_beyond_the_noise_are_believed() -> None:
    assert shrink([0.0, 0.02, 1.9, 1.95], [0.001] * 4) == pytest.approx([0.01, 0.01, 1.925, 1.925], abs=0.02)


def test_one_unlucky_measurement_is_drawn_to_its_kind() -> None:
    believed = shrink([0.0, 0.05, 0.02, 0.9], [0.01, 0.01, 0.01, 0.25])
    assert believed[3] < 0.2


def test_a_single_pod_is_believed_as_it_is() -> None:
    assert shrink([0.7], [0.25]) == [0.7]


def test_what_was_measured_long_ago_rests_on_less() -> None:
    line = Line()
    for _ in range(10):
        line.observe(1_000.0, 0.1, 0.0)
    assert line.weight(HALF_LIFE_S) == pytest.approx(line.weight(0.0) / 2)
    for _ in range(3):
        line.observe(1_000.0, 0.4, 10 * HALF_LIFE_S)
    assert line.expect_s(1_000.0) == pytest.approx(0.4, rel=0.05)
