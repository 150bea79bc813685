"""The ledger's sums are those of the requests, whatever their number, names and ends."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gir.account.ledger import ALL_MODELS, COLUMNS, OTHER, UsageLedger, added_up, to_csv
from gir.account.usage import delivered_usage
from gir.model.ids import ModelId, TenantId
from gir.model.outcome import Outcome
from gir.model.request import Usage

ENGINE = Usage(prompt_tokens=10, completion_tokens=7, cached_tokens=4, reasoning_tokens=2)
usages = st.builds(
    Usage,
    prompt_tokens=st.integers(0, 1_000),
    completion_tokens=st.integers(0, 1_000),
    cached_tokens=st.integers(0, 1_000),
    reasoning_tokens=st.integers(0, 1_000),
    estimated=st.booleans(),
)
entries = st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz"), st.sampled_from(list(Outcome)), usages)


@pytest.mark.slow
@given(requests=st.lists(entries, max_size=60), rows_max=st.integers(1, 5), twice=st.booleans())
def test_sums_are_the_requests_each_counted_once(requests: list, rows_max: int, twice: bool) -> None:
    ledger = UsageLedger(since_wall_s=0.0, rows_max=rows_max)
    for tenant, model, outcome, usage in requests:
        account = ledger.open(TenantId(tenant), ModelId(model))
        assert account.settle(outcome, usage)
        if twice:
            assert not account.settle(Outcome.COMPLETED, ENGINE)
    assert ledger.open_accounts == 0
    for rows in (ledger.rows(), added_up(ledger, model_of=lambda _: ALL_MODELS)):
        assert sum(row.requests for row in rows) == len(requests)
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"):
            assert sum(getattr(row, name) for row in rows) == sum(getattr(usage, name) for *_, usage in requests)
        for row in rows:
            ends = (row.completed, row.failed, row.truncated, row.client_gone, row.expired, row.rejected)
            assert sum(ends) == row.requests
    assert len(ledger.rows()) <= rows_max + 1


def test_rows_beyond_the_bound_are_added_up() -> None:
    ledger = UsageLedger(since_wall_s=0.0, rows_max=2)
    for number in range(10):
        ledger.open(TenantId(f"t{number}"), ModelId("m")).settle(Outcome.COMPLETED, ENGINE)
    rows = {row.tenant: row.requests for row in ledger.rows()}
    assert rows == {"t0": 1, "t1": 1, OTHER: 8}


def test_a_name_that_nobody_serves_gets_no_row_of_its_own() -> None:
    """Clients choose model names: made-up ones must not use up the rows of real ones."""
    ledger = UsageLedger(since_wall_s=0.0)
    for number in range(10):
        ledger.open(TenantId("t"), ModelId(f"made-up-{number}")).settle(Outcome.REJECTED, Usage(), served=False)
    ledger.open(TenantId("t"), ModelId("m")).settle(Outcome.COMPLETED, ENGINE)
    ledger.open(TenantId("t"), ModelId("m")).settle(Outcome.REJECTED, Usage(), served=False)
    assert {row.model: row.requests for row in ledger.rows()} == {"m": 2, OTHER: 10}


def test_estimates_are_marked() -> None:
    ledger = UsageLedger(since_wall_s=0.0)
    ledger.open(TenantId("t"), ModelId("m")).settle(Outcome.COMPLETED, ENGINE)
    guess = Usage(prompt_tokens=5, completion_tokens=3, estimated=True)
    ledger.open(TenantId("t"), ModelId("m")).settle(Outcome.CLIENT_GONE, guess)
    (row,) = ledger.rows(tenant="t")
    assert (row.completed, row.client_gone, row.estimated_requests, row.estimated_tokens) == (1, 1, 1, 8)
    assert ledger.rows(tenant="nobody") == []


def test_csv_has_every_column_and_no_formula() -> None:
    ledger = UsageLedger(since_wall_s=0.0)
    ledger.open(TenantId('a,"b"\n'), ModelId("=cmd|' /C calc'!A0")).settle(Outcome.COMPLETED, ENGINE)
    header, row = csv.reader(io.StringIO(to_csv(ledger.rows())))
    assert tuple(header) == COLUMNS
    assert row[0] == 'a,"b"\n'
    assert row[1] == "'=cmd|' /C calc'!A0"
    assert row[header.index("completion_tokens")] == "7"


@pytest.mark.parametrize(
    ("reported", "started", "complete", "events", "expected"),
    [
        (ENGINE, True, True, 7, ENGINE),
        (ENGINE, True, True, 3, ENGINE),  # several tokens in one event: the engine knows better
        (None, False, False, 0, Usage()),
        (ENGINE, False, False, 0, Usage()),
        (None, True, False, 5, Usage(prompt_tokens=20, completion_tokens=5, estimated=True)),
        (ENGINE, True, False, 7, ENGINE),  # the engine's running count covers what was delivered
        (
            ENGINE,
            True,
            False,
            12,
            Usage(prompt_tokens=10, completion_tokens=12, cached_tokens=4, reasoning_tokens=2, estimated=True),
        ),
    ],
)
def test_a_request_is_settled_by_what_was_delivered(
    reported: Usage | None, started: bool, complete: bool, events: int, expected: Usage
) -> None:
    found = delivered_usage(
        reported, started=started, complete=complete, prompt_tokens_estimate=20, content_events=events
    )
    assert found == expected
