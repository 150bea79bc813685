"""What a test may ask a pod: the last request byte for byte, what was delivered, which faults are installed.

`GET /debug/last-request` (`?raw=1` for its body alone), `GET /debug/stats`, and `GET`, `POST`, `DELETE /debug/faults`
(`?name=` for one).
"""

import base64
from typing import Protocol

import msgspec

from chaos.engine.answers import JSON, error_body
from chaos.engine.driver import Driver
from chaos.engine.faults import Fault, Faults
from chaos.engine.http import Connection, Request
from chaos.engine.prompts import compact


class Debugged(Protocol):
    """The part of a pod that may be looked at and upset."""

    driver: Driver
    faults: Faults
    last_request: Request | None

    def order(self, fault: Fault) -> None:
        """Install a fault."""

    def relieve(self, name: str = "") -> int:
        """Remove faults."""


def answer_debug(pod: Debugged, request: Request, connection: Connection) -> None:
    """Answer one request under `/debug/`."""
    match request.method, request.path:
        case "GET", "/debug/last-request":
            _echo(pod.last_request, request, connection)
        case "GET", "/debug/stats":
            connection.reply(200, JSON, msgspec.json.encode(pod.driver.stats))
        case "GET", "/debug/faults":
            connection.reply(200, JSON, compact(pod.faults.rows()))
        case "DELETE", "/debug/faults":
            connection.reply(200, JSON, compact({"removed": pod.relieve(request.query.get("name", ""))}))
        case "POST", "/debug/faults":
            _order(pod, request, connection)
        case _:
            connection.reply(404, JSON, b'{"detail":"Not Found"}')


def _echo(last: Request | None, request: Request, connection: Connection) -> None:
    if last is None:
        connection.reply(404, JSON, b'{"detail":"no request yet"}')
    elif request.query.get("raw"):
        connection.reply(200, [("content-type", "application/octet-stream")], last.body)
    else:
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in last.headers]
        body = base64.b64encode(last.body).decode()
        target = last.target.decode("latin-1")
        connection.reply(
            200, JSON, compact({"method": last.method, "target": target, "headers": headers, "body_base64": body})
        )


def _order(pod: Debugged, request: Request, connection: Connection) -> None:
    try:
        faults = msgspec.json.decode(request.body, type=Fault | list[Fault])
    except (msgspec.MsgspecError, ValueError) as error:
        connection.reply(400, JSON, error_body(str(error), "BadRequestError", 400))
        return
    for fault in faults if isinstance(faults, list) else [faults]:
        pod.order(fault)
    connection.reply(200, JSON, compact(pod.faults.rows()))
