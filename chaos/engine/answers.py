"""One answer on its way to the client, with whatever fault was ordered for it."""

import asyncio
from collections.abc import Callable
from typing import Final

from chaos.engine.faults import Fault
from chaos.engine.http import Connection, Headers
from chaos.engine.prompts import compact
from chaos.engine.shapes import DONE, sse

JSON: Final[Headers] = [("content-type", "application/json")]
EVENTS: Final[Headers] = [("content-type", "text/event-stream; charset=utf-8")]
LONG_LINE_BYTES = 2 * 1024 * 1024
_BREAKING = frozenset({"cut", "error_event", "malformed"})


def error_body(message: str, type_: str, status: int, param: str | None = None) -> bytes:
    """vLLM's error body."""
    return compact({"error": {"message": message, "type": type_, "param": param, "code": status}})


class EventSink:
    """Server-sent events to one connection. `on_dead` is called once when a fault has ended the answer early."""

    __slots__ = ("_connection", "_fault", "_held", "_on_dead", "_sent", "dead")

    def __init__(self, connection: Connection, fault: Fault | None, on_dead: Callable[[], None]) -> None:
        self._connection = connection
        self._fault = fault
        self._on_dead = on_dead
        self._held: list[bytes] | None = None
        self._sent = 0
        self.dead = False
        if fault is not None and fault.kind == "cut" and fault.how == "fin":
            connection.start_unframed(200, EVENTS)
        else:
            connection.start(200, EVENTS)
        if fault is not None and fault.kind == "hold_first_token":
            self._held = []

    def events(self, events: list[bytes]) -> None:
        """Send events, each in a chunk of its own as uvicorn does."""
        if self._held is None:
            for event in events:
                self._send(event)
            return
        if not self._held and self._fault is not None:
            asyncio.get_running_loop().call_later(self._fault.delay_s, self._let_go)
        self._held += events

    def end(self) -> None:
        """Close the answer properly, unless a fault has ended it or still holds it."""
        if self._held is not None:
            self._held.append(b"")
        elif not self.dead:
            self._connection.end()

    @property
    def holding(self) -> bool:
        """Events wait for a fault's delay."""
        return self._held is not None

    def _let_go(self) -> None:
        held, self._held = self._held or [], None
        for event in held:
            if event:
                self._send(event)
            else:
                self.end()
                self._on_dead()

    def _send(self, event: bytes) -> None:
        if self.dead:
            return
        fault = self._fault
        if fault is not None and fault.kind in _BREAKING and self._sent == fault.after_chunks:
            self._fault = None
            if self._break(fault):
                self.dead = True
                self._on_dead()
                return
        self._sent += 1
        self._connection.send(event)

    def _break(self, fault: Fault) -> bool:
        """Do what was ordered; True when that was the end of the answer."""
        connection = self._connection
        if fault.kind == "cut":
            cut(connection, fault.how)
        elif fault.kind == "error_event":
            error = {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}
            connection.send(sse({"error": {**error, "param": None}}))
            connection.send(DONE)
            connection.end()
        elif fault.how == "utf8":
            connection.send(b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xc3"}}]}\n\n')
            return False
        elif fault.how == "empty":
            connection.send(b": comment\n\ndata:\n\n\r\n\r\n")
            return False
        else:
            page = b"<html><body><h1>502 Bad Gateway</h1></body></html>\n"
            connection.send(page if fault.how == "html" else b"data: " + b"x" * LONG_LINE_BYTES)
            connection.end()
        return True


def cut(connection: Connection, how: str) -> None:
    """End the connection in the middle of an answer."""
    if how == "rst":
        connection.reset()
        return
    if how == "truncate":
        connection.send_raw(b'ff\r\ndata: {"choices":[{"index":0,"del')
    connection.close()


def reply_whole(connection: Connection, body: bytes, fault: Fault | None) -> None:
    """A JSON answer, perhaps broken on the way."""
    if fault is None or fault.kind not in _BREAKING:
        connection.reply(200, JSON, body)
    elif fault.kind == "cut":
        connection.start_unframed(200, [("content-length", str(len(body))), *JSON])
        connection.send_raw(body[: len(body) // 2])
        if fault.how == "rst":
            connection.reset()
        else:
            connection.close()
    elif fault.kind == "error_event":
        connection.reply(500, JSON, error_body("EngineCore encountered an issue.", "InternalServerError", 500))
    else:
        connection.reply(200, JSON, b"<html>502 Bad Gateway</html>" if fault.how == "html" else b'{"choices":[\xff')
