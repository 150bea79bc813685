"""Logs: what must never be written down, and a sink that never blocks."""

import io
import json
import logging
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gir.clock import ManualClock
from gir.telemetry.logs import REDACTED, AccessLog, AccessRecord, LogSink, capture_standard_logging, make_logger, redact


class Lines:
    """A sink that keeps its lines."""

    def __init__(self) -> None:
        self.stream = io.StringIO()
        self.sink = LogSink(self.stream)

    def read(self) -> list[dict[str, Any]]:
        self.sink.close()
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def lines() -> Lines:
    return Lines()


def test_a_line_says_when_who_and_what(lines: Lines) -> None:
    make_logger(lines.sink, ManualClock(wall_s=1_800_000_000.25), component="gir").info("policy taken", version=3)
    assert lines.read() == [
        {
            "time": "2027-01-15T08:00:00.250+00:00",
            "level": "info",
            "component": "gir",
            "event": "policy taken",
            "version": 3,
        }
    ]


def test_lines_below_the_level_are_not_written(lines: Lines) -> None:
    logger = make_logger(lines.sink, ManualClock(), component="gir", level="warning")
    logger.info("no")
    logger.warning("yes")
    assert [line["event"] for line in lines.read()] == ["yes"]


def test_text_format_is_one_readable_line() -> None:
    stream = io.StringIO()
    sink = LogSink(stream)
    make_logger(sink, ManualClock(), component="gir", log_format="text").warning("odd", cluster="eu-1", count=2)
    sink.close()
    assert stream.getvalue().endswith("warning  gir: odd cluster='eu-1' count=2\n")


@pytest.mark.parametrize(
    ("level", "log_format", "words"), [("loud", "json", "log_level is 'loud'"), ("info", "xml", "log_format is 'xml'")]
)
def test_unknown_settings_are_refused(lines: Lines, level: str, log_format: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_logger(lines.sink, ManualClock(), component="gir", level=level, log_format=log_format)


@pytest.mark.parametrize(
    "fields",
    [
        {"authorization": "Bearer abc"},
        {"Authorization": b"Bearer abc"},
        {"api_key": "abc"},
        {"admin_token": "abc"},
        {"client_secret": "abc"},
        {"set-cookie": "abc"},
        {"x-api-key": "abc"},
        {"prompt": "abc"},
        {"messages": [{"role": "user", "content": "abc"}]},
        {"body": b"abc"},
        {"headers": [(b"authorization", b"abc")]},
        {"headers": {"Authorization": "abc"}},
        {"request": {"inner": {"password": "abc"}}},
    ],
)
def test_secrets_and_prompts_are_cut_by_name(fields: dict[str, Any]) -> None:
    text = json.dumps(redact(fields))
    assert "abc" not in text
    assert REDACTED in text


@pytest.mark.parametrize(
    "text",
    [
        "failed with Bearer abcdef.123456",
        "key sk-abcdef123456 refused",
        "token eyJhbGciOiJSUzI1NiJ9.abcdef123456.abcdef",
        "redis://user:abcdef@host/0",
    ],
)
def test_credentials_in_free_text_are_cut_by_shape(text: str) -> None:
    assert "abcdef" not in redact(text)


def test_figures_about_tokens_are_not_secrets() -> None:
    fields = {"prompt_tokens": 7, "tokens": 9, "key_id": "demo", "model": "llama", "tokens_per_min": 5}
    assert redact(fields) == fields


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    )
)
def test_whatever_is_logged_can_be_rendered(value: Any) -> None:
    json.dumps(redact({"value": value}))


def test_a_blocked_sink_drops_and_counts_instead_of_waiting() -> None:
    release = threading.Event()
    written: list[str] = []

    class Stuck(io.StringIO):
        def write(self, text: str) -> int:
            release.wait(5.0)
            written.append(text)
            return len(text)

    drops: list[None] = []
    sink = LogSink(Stuck(), lines_max=10, on_drop=lambda: drops.append(None))
    for number in range(1_000):
        sink.write(str(number))
    release.set()
    sink.close()
    kept = "".join(written).splitlines()
    assert len(kept) + len(drops) == 1_000
    assert 10 <= len(kept) <= 10 + 256 + 1


def test_a_broken_sink_does_not_break_the_process() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("disk full")

    sink = LogSink(Broken())
    sink.write("x")
    sink.close()


def test_libraries_log_through_the_same_redaction(lines: Lines) -> None:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        capture_standard_logging(make_logger(lines.sink, ManualClock(), component="gir"))
        logging.getLogger("some.library").warning("called with Bearer %s", "abcdef123456")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    (line,) = lines.read()
    assert (line["source"], line["event"]) == ("some.library", f"called with {REDACTED}")


def test_exceptions_are_written_with_their_trace(lines: Lines) -> None:
    logger = make_logger(lines.sink, ManualClock(), component="gir")
    try:
        raise ValueError("bad Bearer abcdef123456")
    except ValueError:
        logger.exception("failed")
    (line,) = lines.read()
    assert "ValueError" in line["exception"]
    assert "abcdef" not in line["exception"]


def test_access_lines_hold_what_was_given(lines: Lines) -> None:
    AccessLog(lines.sink).write(AccessRecord(time="t", request_id="r", status=200, attempts=1))
    assert lines.read() == [{"time": "t", "request_id": "r", "attempts": 1, "status": 200}]
