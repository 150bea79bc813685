"""The phase table: every row of what a retry may do, and every status it is read from."""

import itertools

import pytest

from gir.forward.budget import RetryBudget
from gir.forward.phases import Next, after, classify
from gir.model.outcome import AttemptResult, Phase

ROWS = [
    (AttemptResult.LOCAL_FAULT, Phase.CONNECTING, Next.FREE),
    (AttemptResult.LOCAL_FAULT, Phase.DISPATCHED, Next.BUDGET),
    (AttemptResult.LOCAL_FAULT, Phase.HEAD, Next.BUDGET),
    (AttemptResult.UPSTREAM_FAULT, Phase.HEAD, Next.BUDGET),
    (AttemptResult.BACKPRESSURE, Phase.HEAD, Next.ONCE),
    (AttemptResult.CLIENT_ERROR, Phase.HEAD, Next.PASS),
    (AttemptResult.CANCELLED, Phase.DISPATCHED, Next.STOP),
]


@pytest.mark.parametrize(("result", "phase", "verdict"), ROWS)
def test_row(result: AttemptResult, phase: Phase, verdict: Next) -> None:
    assert after(result, phase) is verdict


@pytest.mark.parametrize(("result", "phase"), list(itertools.product(AttemptResult, [Phase.STREAMING, Phase.DONE])))
def test_nothing_is_retried_once_the_client_has_content(result: AttemptResult, phase: Phase) -> None:
    assert after(result, phase) is Next.STOP


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, AttemptResult.OK),
        (302, AttemptResult.UPSTREAM_FAULT),
        (400, AttemptResult.CLIENT_ERROR),
        (404, AttemptResult.CLIENT_ERROR),
        (408, AttemptResult.CLIENT_ERROR),
        (413, AttemptResult.CLIENT_ERROR),
        (422, AttemptResult.CLIENT_ERROR),
        (429, AttemptResult.BACKPRESSURE),
        (503, AttemptResult.BACKPRESSURE),
        (500, AttemptResult.UPSTREAM_FAULT),
        (501, AttemptResult.CLIENT_ERROR),
        (502, AttemptResult.UPSTREAM_FAULT),
        (504, AttemptResult.UPSTREAM_FAULT),
    ],
)
def test_status_class(status: int, result: AttemptResult) -> None:
    assert classify(status, from_agent=False).result is result


def test_an_engines_404_is_final_but_an_agents_404_is_not() -> None:
    assert not classify(404, from_agent=False).may_be_elsewhere
    assert classify(404, from_agent=True).may_be_elsewhere
    assert classify(401, from_agent=True).may_be_elsewhere
    assert not classify(400, from_agent=True).may_be_elsewhere


def test_budget_is_a_share_of_active_with_a_floor() -> None:
    budget = RetryBudget(share=0.1, minimum=3)
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    budget.active = 50
    assert budget.limit() == 5
    assert budget.take()
    budget.give_back(4)
    assert repr(budget) == "<RetryBudget 0/5 of 50 active, 0.0 saved>"


def test_savings_pay_for_the_loss_of_a_cluster_and_no_more_than_their_share() -> None:
    budget = RetryBudget(share=0.1, minimum=3)
    for number in range(1_000):
        budget.enter()
        if number >= 30:
            budget.leave(0)
    moved = sum(budget.take() for _ in range(100))
    assert 30 <= moved <= 34, "what ran on lost clusters moves at once, up to what is in flight"
    budget.give_back(moved)
    later = 0
    for _ in range(1_000):
        budget.enter()
        while budget.take():
            later += 1
        budget.leave(0)
    assert later <= 0.1 * 1_000 + 4, "over time retries stay within the share of requests"


def test_giving_back_more_than_was_taken_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        RetryBudget(share=0.1, minimum=3).give_back()
