"""Structured logs: JSON lines (or a readable form), one redaction point, and a sink that never blocks a request.

Every line passes `redact` before it is rendered, so there is one place to read when asking what can leak: secrets and
prompts are cut by the name of their field, and credentials inside free text by their shape. A line then goes into a
bounded queue that a thread drains; when the sink is slower than the process, lines are dropped and counted.
"""

import functools
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import IO, Any

import msgspec
import structlog

from gir.clock import Clock

REDACTED = "[redacted]"
GATHER_S = 0.02
"""How long lines are gathered before they are written together."""
TEXT_CHARS_MAX = 2_000
DEPTH_MAX = 4
ITEMS_MAX = 50

_SECRET = re.compile(
    r"authorization|cookie|password|passwd|secret|credential|private_key|api_?key|apikey|bearer"
    r"|(?:^|_|-)(?:token|key|jwt|auth)$"
)
_PROMPT = frozenset(
    {
        "prompt",
        "prompts",
        "messages",
        "input",
        "instructions",
        "system",
        "content",
        "text",
        "body",
        "documents",
        "query",
    }
)
_CREDENTIAL_SHAPES = re.compile(
    r"(?i:bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}"
    r"|\bsk-[A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)

Logger = structlog.typing.FilteringBoundLogger


def redact(value: Any, depth: int = 0) -> Any:
    """A copy of `value` that may be written down: secrets and prompts cut, sizes bounded.

    Mappings are judged by their keys, pairs of (name, value), as headers come, by their first half.
    """
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        clean = _CREDENTIAL_SHAPES.sub(REDACTED, value)
        return clean if len(clean) <= TEXT_CHARS_MAX else f"{clean[:TEXT_CHARS_MAX]}... ({len(clean)} characters)"
    if depth >= DEPTH_MAX:
        return f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        return {str(key): redact_field(key, item, depth + 1) for key, item in list(value.items())[:ITEMS_MAX]}
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str | bytes):
        return [redact(value[0], depth + 1), redact_field(value[0], value[1], depth + 1)]
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(item, depth + 1) for item in list(value)[:ITEMS_MAX]]
    return redact(str(value), depth + 1)


def redact_field(name: Any, value: Any, depth: int = 0) -> Any:
    """`value` as it may be written down under `name`."""
    label = (name.decode(errors="replace") if isinstance(name, bytes) else str(name)).lower()
    if label in _PROMPT or _SECRET.search(label):
        return REDACTED if value not in (None, "", b"") else value
    return redact(value, depth)


class LogSink:
    """Bounded queue in front of a text stream, drained by one thread.

    The thread is woken by the first line and lets more gather for `GATHER_S` before it writes: waking it for every line
    costs the event loop more than the line itself. `on_drop()` is called for each line that found the queue full. A
    stream that fails is given up silently: there is nowhere left to say so.
    """

    def __init__(self, stream: IO[str], *, lines_max: int = 10_000, on_drop: Callable[[], None] = lambda: None) -> None:
        self._stream = stream
        self._lines_max = lines_max
        self._on_drop = on_drop
        self._lines: deque[str] = deque()
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._drain, name="gir-log-sink", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Take one line (no newline at its end); never blocks."""
        if len(self._lines) >= self._lines_max:
            self._on_drop()
            return
        self._lines.append(line)
        if not self._wanted.is_set():
            self._wanted.set()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, for at most `timeout_s`, and stop."""
        self._closing.set()
        self._wanted.set()
        self._thread.join(timeout_s)

    def _drain(self) -> None:
        lines, stopping = self._lines, False
        while not stopping:
            self._wanted.wait()
            stopping = self._closing.wait(GATHER_S)
            # Cleared before the queue is emptied: a line that comes in between asks for another round.
            self._wanted.clear()
            text = "".join([f"{lines.popleft()}\n" for _ in range(len(lines))])
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):
                return


class _SinkLogger:
    """What structlog calls at the end of its chain."""

    __slots__ = ("_write",)

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write

    def msg(self, line: str) -> None:
        self._write(line)

    debug = info = warning = error = critical = exception = msg


def make_logger(
    sink: LogSink, clock: Clock, *, component: str, level: str = "info", log_format: str = "json"
) -> Logger:
    """The logger of one process. `log_format` is `json` or `text`; raises ValueError for an unknown level or format."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"log_level is {level!r}: use debug, info, warning or error")
    if log_format not in {"json", "text"}:
        raise ValueError(f"log_format is {log_format!r}: use json or text")

    def stamp(_: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        moment = wall_stamp(clock.wall_s())
        clean = {name: redact_field(name, value) for name, value in event.items() if name != "event"}
        return {"time": moment, "level": method, "component": component, "event": redact(event.get("event")), **clean}

    logger: Logger = structlog.wrap_logger(
        _SinkLogger(sink.write),
        processors=[
            structlog.processors.format_exc_info,
            stamp,
            _render_json if log_format == "json" else _render_text,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
    )
    return logger


def _render_json(_: Any, __: str, event: structlog.typing.EventDict) -> str:
    return msgspec.json.encode(event).decode()


def _render_text(_: Any, __: str, event: structlog.typing.EventDict) -> str:
    lead = f"{event.pop('time')} {event.pop('level'):<8} {event.pop('component')}: {event.pop('event')}"
    error = event.pop("exception", None)
    pairs = "".join(
        f" {name}={value!r}" if isinstance(value, str) else f" {name}={value}" for name, value in event.items()
    )
    return f"{lead}{pairs}" + (f"\n{error}" if error else "")


class _Forward(logging.Handler):
    """Carries the standard library's records into our logger, so that libraries write to the same sink."""

    def __init__(self, logger: Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info if record.exc_info and record.exc_info[0] else None
        self._logger.log(record.levelno, record.getMessage(), source=record.name, exc_info=error)


def capture_standard_logging(logger: Logger, level: int = logging.WARNING) -> None:
    """Send what libraries log at `level` and above through `logger`."""
    logging.basicConfig(handlers=[_Forward(logger)], level=level, force=True)


class AccessRecord(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of the access log. Its fields are the whole list of what it may say; none can hold a prompt or a key."""

    time: str
    event: str = "request"
    request_id: str
    tenant: str = ""
    key_id: str = ""
    method: str = ""
    path: str = ""
    model: str = ""
    model_asked: str = ""
    criticality: str = ""
    cluster: str = ""
    pod: str = ""
    reason: str = ""
    canary: str = ""
    attempts: int = 0
    status: int = 0
    outcome: str = ""
    error: str = ""
    stream: bool = False
    duration_ms: float = 0.0
    ttft_ms: float | None = None
    queued_ms: float | None = None
    limits_ms: float | None = None
    """Time spent waiting for the shared store of the limits; absent when it was not asked."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    bytes_sent: int = 0
    policy_version: int = 0
    trace_id: str = ""


class AccessLog:
    """One line for each request, encoded without the logger's chain: it is on the way of every request."""

    __slots__ = ("_encode", "_write")

    def __init__(self, sink: LogSink) -> None:
        self._write = sink.write
        self._encode = msgspec.json.Encoder().encode

    def write(self, record: AccessRecord) -> None:
        """Queue the line of one ended request."""
        self._write(self._encode(record).decode())


def wall_stamp(wall_s: float) -> str:
    """RFC 3339 in UTC with milliseconds, as all lines carry it."""
    return _stamp_of(int(wall_s * 1000))


@functools.lru_cache(maxsize=4)  # a busy process ends several requests in one millisecond
def _stamp_of(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
