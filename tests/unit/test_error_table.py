"""One golden body for each row of the error table."""

import pytest

from gir.model.errors import ErrorKind, RequestError, error_body

GOLDEN = {
    "BAD_JSON": (400, "invalid_request_error", "invalid_json", False, None),
    "BAD_REQUEST": (400, "invalid_request_error", "invalid_request", False, None),
    "BAD_FRAMING": (400, "invalid_request_error", "bad_http", False, None),
    "UNAUTHENTICATED": (401, "authentication_error", "invalid_api_key", False, None),
    "FORBIDDEN": (403, "permission_error", "forbidden", False, None),
    "MODEL_NOT_FOUND": (404, "invalid_request_error", "model_not_found", False, None),
    "NOT_FOUND": (404, "invalid_request_error", "not_found", False, None),
    "METHOD_NOT_ALLOWED": (405, "invalid_request_error", "method_not_allowed", False, None),
    "SLOW_CLIENT": (408, "invalid_request_error", "request_timeout", False, None),
    "BODY_TOO_LARGE": (413, "invalid_request_error", "body_too_large", False, None),
    "UNSUPPORTED_MEDIA": (415, "invalid_request_error", "unsupported_media_type", False, None),
    "RATE_LIMITED": (429, "rate_limit_error", "rate_limit_exceeded", True, None),
    "OVERLOADED": (429, "rate_limit_error", "overloaded", True, None),
    "HEADERS_TOO_LARGE": (431, "invalid_request_error", "headers_too_large", False, None),
    "INTERNAL": (500, "server_error", "internal_error", False, None),
    "UPSTREAM_FAILED": (502, "server_error", "upstream_failed", False, False),
    "NO_CAPACITY": (503, "server_error", "no_capacity", True, None),
    "AUTH_UNAVAILABLE": (503, "server_error", "auth_unavailable", True, None),
    "SHUTTING_DOWN": (503, "server_error", "shutting_down", True, None),
    "DEADLINE_EXCEEDED": (504, "server_error", "deadline_exceeded", False, False),
    "LOOP_DETECTED": (508, "server_error", "loop_detected", False, False),
}


@pytest.mark.parametrize("kind", list(ErrorKind), ids=lambda kind: kind.name)
def test_row(kind: ErrorKind) -> None:
    status, type_, code, _, _ = GOLDEN[kind.name]
    row = kind.value
    assert (row.status, row.type, row.code, row.retry_after, row.should_retry) == GOLDEN[kind.name]
    assert error_body(kind, "why", origin="agent", param="model") == (
        f'{{"error":{{"message":"agent: why","type":"{type_}","param":"model","code":"{code}"}}}}'.encode()
    )
    assert 400 <= status < 600


def test_every_row_has_a_golden_one() -> None:
    assert set(GOLDEN) == {kind.name for kind in ErrorKind}


def test_every_busy_answer_tells_when_to_come_back() -> None:
    assert all(kind.value.retry_after for kind in ErrorKind if kind.value.status in (429, 503))


def test_reason_defaults_to_the_code() -> None:
    assert RequestError(ErrorKind.OVERLOADED, "full").reason == "overloaded"
    assert RequestError(ErrorKind.OVERLOADED, "full", reason="queue_full").reason == "queue_full"
