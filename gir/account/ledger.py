"""Who used how much: one row for each tenant and model, every request in exactly one of them. Pure.

The sums over all rows are the sums over all settled requests: rows beyond the bound are added up in one called
`(other)`, and nothing is ever dropped.
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator

import msgspec

from gir.model.ids import ModelId, TenantId
from gir.model.outcome import Outcome
from gir.model.request import Usage

ROWS_MAX = 10_000
OTHER = "(other)"
ALL_MODELS = "*"


class UsageRow(msgspec.Struct, kw_only=True):
    """Totals of one tenant on one model since the ledger began."""

    tenant: str
    model: str
    requests: int = 0
    completed: int = 0
    failed: int = 0
    truncated: int = 0
    client_gone: int = 0
    expired: int = 0
    rejected: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated_requests: int = 0
    """Requests whose tokens were counted from what was delivered, because the engine's count never came."""
    estimated_tokens: int = 0
    """Their tokens; part of the sums above."""


_FIELD_OF = {
    Outcome.COMPLETED: "completed",
    Outcome.FAILED: "failed",
    Outcome.TRUNCATED: "truncated",
    Outcome.CLIENT_GONE: "client_gone",
    Outcome.EXPIRED: "expired",
    Outcome.REJECTED: "rejected",
}
COLUMNS = UsageRow.__struct_fields__


class Account:
    """One request's entry: opened when it is known, settled exactly once."""

    __slots__ = ("_ledger", "_model", "_tenant", "settled")

    def __init__(self, ledger: "UsageLedger", tenant: TenantId, model: ModelId) -> None:
        self._ledger = ledger
        self._tenant = tenant
        self._model = model
        self.settled = False

    def settle(self, outcome: Outcome, usage: Usage, *, served: bool = True) -> bool:
        """Enter how the request ended and what it took. False, and no change, when it has been settled before.

        `served` is False when it is not known that the fleet has such a model: only a name that is served gets a row.
        """
        if self.settled:
            return False
        self.settled = True
        self._ledger.enter(self._tenant, self._model, outcome, usage, served=served)
        return True


class UsageLedger:
    """Totals of this process since `since_wall_s`."""

    def __init__(self, *, since_wall_s: float, rows_max: int = ROWS_MAX) -> None:
        self.since_wall_s = since_wall_s
        self.open_accounts = 0
        """Requests opened and not settled: zero when nothing runs."""
        self._rows_max = rows_max
        self._rows: dict[tuple[str, str], UsageRow] = {}

    def __repr__(self) -> str:
        return f"<UsageLedger {len(self._rows)} rows, {self.open_accounts} open>"

    def open(self, tenant: TenantId, model: ModelId) -> Account:
        """Begin a request of `tenant` on `model`."""
        self.open_accounts += 1
        return Account(self, tenant, model)

    def __iter__(self) -> Iterator[UsageRow]:
        """Rows in the order in which they were opened."""
        return iter(self._rows.values())

    def enter(self, tenant: TenantId, model: ModelId, outcome: Outcome, usage: Usage, *, served: bool) -> None:
        """Add one request to its row. Only `Account` calls this, once."""
        self.open_accounts -= 1
        row = self._rows.get((tenant, model)) or self._row(tenant, model if served else OTHER)
        row.requests += 1
        field = _FIELD_OF[outcome]
        setattr(row, field, getattr(row, field) + 1)
        row.prompt_tokens += usage.prompt_tokens
        row.completion_tokens += usage.completion_tokens
        row.cached_tokens += usage.cached_tokens
        row.reasoning_tokens += usage.reasoning_tokens
        if usage.estimated:
            row.estimated_requests += 1
            row.estimated_tokens += usage.prompt_tokens + usage.completion_tokens

    def _row(self, tenant: str, model: str) -> UsageRow:
        """A row for a pair that has none of its own so far."""
        if len(self._rows) >= self._rows_max:
            tenant, model = OTHER, OTHER
        return self._rows.setdefault((tenant, model), UsageRow(tenant=tenant, model=model))

    def rows(self, tenant: str | None = None) -> list[UsageRow]:
        """Rows (of one `tenant`), the heaviest first."""
        return added_up(row for row in self if tenant is None or row.tenant == tenant)


def added_up(
    rows: Iterable[UsageRow], *, model_of: Callable[[UsageRow], str] = lambda row: row.model
) -> list[UsageRow]:
    """Sums of `rows` that share a tenant and what `model_of` says, the heaviest first."""
    sums: dict[tuple[str, str], UsageRow] = {}
    for row in rows:
        model = model_of(row)
        total = sums.setdefault((row.tenant, model), UsageRow(tenant=row.tenant, model=model))
        for name in COLUMNS[2:]:
            setattr(total, name, getattr(total, name) + getattr(row, name))
    return sorted(sums.values(), key=lambda row: -(row.prompt_tokens + row.completion_tokens))


def to_csv(rows: list[UsageRow]) -> str:
    """`rows` as CSV with a header line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(value) for value in msgspec.structs.astuple(row)] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    """Names are chosen by tenants: one that a spreadsheet would run as a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t", "\r"} else value
