"""What a client saw, request by request: the only evidence drills accept.

A record is written when its request ends and never changed. Times are seconds of the client's monotonic clock; chunk
times are milliseconds after `sent_s`. Judging happens afterwards (`summarize`, `chaos.promises`), so an old history can
be judged again.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

_NUMBER = re.compile(rb"tok-(\d+)")


class Record(msgspec.Struct, kw_only=True):
    """One request."""

    number: int
    model: str
    stream: bool
    key: str = ""
    """Name of the API key, so that groups of requests can be told apart."""
    user: str = ""
    """End user it was sent for, if the load has any."""
    tokens_expected: int = 0
    leaves: bool = False
    """This client was told to hang up before the end: what it missed is nobody's failure."""
    scheduled_s: float = 0.0
    sent_s: float = 0.0
    head_s: float | None = None
    first_token_s: float | None = None
    end_s: float = 0.0
    status: int = 0
    ended: str = ""
    """How the connection saw it end: `complete`, `eof`, `reset`, `timeout`, `refused`, `garbled`; or `skipped` when too
    many others were in flight."""
    done: bool = False
    """`[DONE]` came, or the whole JSON body."""
    error: str = ""
    """Message of the error body or error event."""
    error_code: str = ""
    tokens: int = 0
    disorder: int = 0
    """Tokens that were not the next number."""
    chunk_ms: list[float] = []
    router: str = ""
    """Address of the router it was sent to."""
    cluster: str = ""
    pod: str = ""
    served: str = ""
    """Model that answered, which may be another than the one asked for."""
    attempts: int = 0
    reason: str = ""
    retry_after: str = ""
    request_id: str = ""

    @property
    def ok(self) -> bool:
        """Whole, in order, and properly ended."""
        return self.status == 200 and self.ended == "complete" and self.done and not self.error and not self.disorder

    @property
    def limited(self) -> bool:
        """Refused by a limit, as it should be: 429 that says when to come back."""
        return self.status == 429 and self.error_code == "rate_limit_exceeded" and self.retry_after not in ("", "0")

    @property
    def gap_ms(self) -> float | None:
        """Mean time between its chunks; None for fewer than three."""
        chunks = self.chunk_ms
        return (chunks[-1] - chunks[0]) / (len(chunks) - 1) if len(chunks) > 2 else None

    @property
    def failed_before_token(self) -> bool:
        """An error the client saw before any token (the PTE of the fault catalogue)."""
        return not self.ok and not self.left and self.tokens == 0 and self.ended != "skipped"

    @property
    def left(self) -> bool:
        """The client hung up before the end, as planned."""
        return self.leaves and self.ended == "timeout"

    @property
    def failed_after_token(self) -> bool:
        """A stream that broke after its first token."""
        return not self.ok and not self.left and self.tokens > 0

    @property
    def lie(self) -> bool:
        """Said to be complete, and was not: tokens missing or out of order, or cut without an error event."""
        if self.done and not self.error:
            return self.disorder > 0 or self.tokens < self.tokens_expected
        return self.failed_after_token and not self.error and self.ended == "complete"


class Recorder:
    """Listens to one answer and fills its record."""

    __slots__ = ("_body", "_next", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        self._body = bytearray()
        self._next = 1

    def head(self, status: int, headers: list[tuple[str, str]], now_s: float) -> None:
        record = self.record
        record.head_s = now_s
        record.status = status
        found = dict(headers)
        record.cluster = found.get("x-gir-cluster", "")
        record.pod = found.get("x-gir-pod", "")
        record.served = found.get("x-gir-model", "")
        record.reason = found.get("x-gir-reason", "")
        record.request_id = found.get("x-request-id", "")
        record.retry_after = found.get("retry-after", "")
        attempts = found.get("x-gir-attempts", "")
        record.attempts = int(attempts) if attempts.isdigit() else 0

    def data(self, data: bytes, now_s: float) -> None:
        self._body += data
        if not self.record.stream or self.record.status != 200:
            return
        *events, rest = self._body.split(b"\n\n")
        self._body = bytearray(rest)
        for event in events:
            self._event(event, now_s)

    def end(self, how: str, now_s: float) -> None:
        record = self.record
        record.ended = how
        record.end_s = now_s
        if record.status == 200 and not record.stream and how == "complete":
            self._count(self._body, now_s)
            record.done = True
        elif record.status and (record.status != 200 or not record.stream) and self._body:
            self._error(self._body)

    def _event(self, event: bytes | bytearray, now_s: float) -> None:
        event = event.lstrip(b"\r\n")
        if event.startswith(b"data: [DONE]"):
            self.record.done = True
        elif event.startswith(b'data: {"error"') or b'"type":"error"' in event:
            self._error(event.removeprefix(b"data: "))
        else:
            self._count(event, now_s)

    def _count(self, text: bytes | bytearray, now_s: float) -> None:
        record = self.record
        numbers = _NUMBER.findall(text)
        if not numbers:
            return
        if record.first_token_s is None:
            record.first_token_s = now_s
        if record.stream:
            record.chunk_ms.append(round((now_s - record.sent_s) * 1e3, 1))
        for number in numbers:
            record.disorder += int(number) != self._next
            self._next = int(number) + 1
        record.tokens += len(numbers)

    def _error(self, text: bytes | bytearray) -> None:
        try:
            error = json.loads(text)["error"]
            self.record.error = str(error["message"])
            self.record.error_code = str(error.get("code") or error.get("type") or "")
        except (ValueError, KeyError, TypeError, AttributeError):
            self.record.error = text[:200].decode(errors="replace") or "error"


def percentile(values: Sequence[float], share: float) -> float | None:
    """Nearest-rank percentile of `values`, `share` from 0 to 1; None when there are none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summarize(records: Sequence[Record]) -> dict[str, Any]:
    """Counts and latencies (seconds) of a history."""
    sent = [record for record in records if record.ended != "skipped"]
    ttft = [record.first_token_s - record.sent_s for record in sent if record.stream and record.first_token_s]
    total = [record.end_s - record.sent_s for record in sent if record.ok]
    late = [record.sent_s - record.scheduled_s for record in sent]
    return {
        "requests": len(records),
        "skipped": len(records) - len(sent),
        "left": sum(record.left for record in sent),
        "ok": sum(record.ok for record in sent),
        "failed_before_token": sum(record.failed_before_token for record in sent),
        "failed_after_token": sum(record.failed_after_token for record in sent),
        "lies": sum(record.lie for record in sent),
        "tokens": sum(record.tokens for record in sent),
        "retried": sum(record.attempts > 1 for record in sent),
        "status": _counts(str(record.status or record.ended) for record in sent),
        "errors": _counts(record.error_code or record.ended for record in sent if not record.ok and not record.left),
        "cluster": _counts(record.cluster or "?" for record in sent if record.status == 200),
        "ttft_s": _spread(ttft),
        "total_s": _spread(total),
        "late_s": _spread(late),
    }


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    rounded = [round(value, 6) for value in values]
    return {name: percentile(rounded, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}


def write(path: Path, records: Iterable[Record]) -> None:
    """One JSON object a line."""
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))


def read(path: Path) -> list[Record]:
    """A history written by `write`; raises ValueError naming the line that is none."""
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            records.append(msgspec.json.decode(line, type=Record))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
    return records
