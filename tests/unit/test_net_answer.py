"""Errors as HTTP answers."""

import json
import random

import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.net.answer import error_answer


def test_the_row_of_the_table_becomes_status_body_and_headers() -> None:
    error = RequestError(ErrorKind.BODY_TOO_LARGE, "too big", param="messages")
    status, headers, body = error_answer(error, "gir", random.Random(0))
    assert status == 413
    assert dict(headers)[b"content-type"] == b"application/json"
    assert b"retry-after" not in dict(headers)
    assert json.loads(body)["error"] == {
        "message": "gir: too big",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "body_too_large",
    }


@pytest.mark.parametrize(
    ("wanted_s", "least", "most"), [(None, 1, 2), (0.0, 1, 2), (1.0, 1, 2), (7.2, 8, 10), (60.0, 60, 75)]
)
def test_retry_after_is_whole_never_early_and_spread(wanted_s: float | None, least: int, most: int) -> None:
    chance = random.Random(1)
    error = RequestError(ErrorKind.OVERLOADED, "full", retry_after_s=wanted_s)
    seen = {int(dict(error_answer(error, "gir", chance)[1])[b"retry-after"]) for _ in range(300)}
    assert (min(seen), max(seen)) == (least, most)


def test_what_must_not_be_retried_says_so() -> None:
    _, headers, _ = error_answer(RequestError(ErrorKind.UPSTREAM_FAILED, "x"), "gir", random.Random(0))
    assert dict(headers)[b"x-should-retry"] == b"false"


@pytest.mark.parametrize(
    ("server", "origin", "speaker"), [("gir", "gir", "gir"), ("agent", "gir", "agent"), ("gir", "engine", "engine")]
)
def test_the_message_begins_with_who_is_speaking(server: str, origin: str, speaker: str) -> None:
    _, _, body = error_answer(RequestError(ErrorKind.NOT_FOUND, "x", origin=origin), server, random.Random(0))
    assert json.loads(body)["error"]["message"] == f"{speaker}: x"
