"""The access log's line of a request that was refused says by what, not only with which status."""

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gir.account.recorder import Recorder
from gir.clock import ManualClock
from gir.model.decision import Placement
from gir.model.errors import ErrorKind, RequestError
from gir.model.outcome import Outcome
from gir.model.policy import PolicySnapshot
from gir.telemetry.logs import AccessLog, LogSink
from gir.telemetry.metrics import RouterMetrics
from tests.support.limiting import request


def line_of(error: RequestError | None, placement: Placement | None) -> dict[str, Any]:
    scope: Any = SimpleNamespace(
        request_id="req-1",
        method="POST",
        path="/v1/chat/completions",
        arrived_s=0.0,
        first_token_s=None,
        queued_s=0.0,
        limits_s=0.0,
        status=200 if error is None else error.kind.value.status,
        resumed=0,
        outcome=Outcome.COMPLETED if error is None else Outcome.REJECTED,
        policy=PolicySnapshot(),
        request=request(1),
        placement=placement,
        usage=None,
        error=error,
        attempts=(),
    )
    stream = io.StringIO()
    sink = LogSink(stream)
    Recorder(RouterMetrics(CollectorRegistry()), ManualClock(), AccessLog(sink)).request(scope, 0)
    sink.close()
    line: dict[str, Any] = json.loads(stream.getvalue())
    return line


PLACED = Placement(reason="cheapest")
LIMITED = RequestError(ErrorKind.RATE_LIMITED, "no", reason="limit:ci:tokens")


@pytest.mark.parametrize(
    ("error", "placement", "reason", "code"),
    [
        (LIMITED, None, "limit:ci:tokens", "rate_limit_exceeded"),
        (RequestError(ErrorKind.OVERLOADED, "no", reason="shed:sheddable"), PLACED, "shed:sheddable", "overloaded"),
        (RequestError(ErrorKind.UPSTREAM_FAILED, "no"), PLACED, "cheapest", "upstream_failed"),
        (None, PLACED, "cheapest", None),
    ],
)
def test_the_reason_of_a_refusal_is_the_most_exact_one(
    error: RequestError | None, placement: Placement | None, reason: str, code: str | None
) -> None:
    line = line_of(error, placement)
    assert (line["reason"], line.get("error")) == (reason, code)
