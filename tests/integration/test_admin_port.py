"""The admin port of both tiers: who may call, and what errors look like."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.registry import CollectorRegistry

from gir.model.errors import ErrorKind, RequestError
from gir.telemetry.admin import (
    OPERATOR,
    READER,
    AdminAccess,
    AdminServer,
    AdminToken,
    Readiness,
    build_app,
    digest_of,
    json_response,
    only_looks,
)
from gir.telemetry.metrics import RouterMetrics
from tests.support.beats import Log

TOKENS = (
    AdminToken(name="eyes", digest=digest_of("r-secret"), role=READER),
    AdminToken(name="hands", digest=digest_of("o-secret"), role=OPERATOR),
)


class Port:
    """A running admin port and a client for it."""

    def __init__(self) -> None:
        self.ready = Readiness(True)
        self.failures: list[tuple[str, BaseException]] = []
        self.url = ""

    async def start(self, access: AdminAccess) -> AdminServer:
        registry = CollectorRegistry()
        RouterMetrics(registry).in_flight.one.set(3)
        app = build_app(
            registry=registry,
            readiness=lambda: self.ready,
            access=access,
            on_error=lambda what, error: self.failures.append((what, error)),
        )

        async def act(_: web.Request) -> web.Response:
            return json_response({"done": True})

        @only_looks
        async def ask(_: web.Request) -> web.Response:
            return json_response({"answer": 42})

        async def fail(_: web.Request) -> web.Response:
            raise LookupError("secret detail")

        async def refuse(_: web.Request) -> web.Response:
            raise RequestError(ErrorKind.BAD_REQUEST, "weight is 3: must be between 0 and 1", param="weight")

        app.router.add_post("/admin/act", act)
        app.router.add_post("/admin/ask", ask)
        app.router.add_get("/admin/fail", fail)
        app.router.add_get("/admin/refuse", refuse)
        server = AdminServer(app)
        await server.start("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.port}"
        return server

    async def call(self, method: str, path: str, **headers: str) -> tuple[int, Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=named) as answer,
        ):
            text = await answer.text()
            return answer.status, await answer.json() if "json" in answer.content_type else text


@pytest.fixture
async def local() -> AsyncIterator[Port]:
    port = Port()
    server = await port.start(AdminAccess())
    yield port
    await server.close()


@pytest.fixture
async def guarded() -> AsyncIterator[Port]:
    port = Port()
    server = await port.start(AdminAccess(TOKENS))
    yield port
    await server.close()


async def test_health_readiness_and_metrics(local: Port) -> None:
    assert await local.call("GET", "/healthz") == (200, {"status": "ok"})
    assert await local.call("GET", "/readyz") == (200, {"ready": True, "reasons": []})
    local.ready = Readiness(False, ("no cluster has reported",))
    assert await local.call("GET", "/readyz") == (503, {"ready": False, "reasons": ["no cluster has reported"]})
    status, text = await local.call("GET", "/metrics")
    assert status == 200
    assert "gir_requests_in_flight 3.0" in text


async def test_errors_have_the_shape_of_the_data_port(local: Port) -> None:
    status, body = await local.call("GET", "/nowhere")
    assert (status, body["error"]["code"]) == (404, "not_found")
    status, body = await local.call("GET", "/admin/act")
    assert (status, body["error"]["code"]) == (405, "method_not_allowed")
    status, body = await local.call("GET", "/admin/refuse")
    assert (status, body["error"]["param"]) == (400, "weight")


async def test_a_failing_handler_is_reported_and_tells_nothing(local: Port) -> None:
    status, body = await local.call("GET", "/admin/fail")
    assert status == 500
    assert "secret" not in str(body)
    ((what, error),) = local.failures
    assert (what, type(error)) == ("GET /admin/fail", LookupError)


async def test_without_tokens_only_this_machine_by_its_own_name_may_call(local: Port) -> None:
    assert (await local.call("POST", "/admin/act"))[0] == 200
    assert (await local.call("POST", "/admin/act", Host="localhost:9090"))[0] == 200
    assert (await local.call("POST", "/admin/act", Host="[::1]:9090"))[0] == 200
    assert (await local.call("POST", "/admin/act", Host="evil.example"))[0] == 403


async def test_a_foreign_page_cannot_act_through_a_browser(local: Port) -> None:
    host = local.url.removeprefix("http://")
    assert (await local.call("POST", "/admin/act", Origin=f"http://{host}"))[0] == 200
    assert (await local.call("POST", "/admin/act", Origin="http://evil.example"))[0] == 403
    assert (await local.call("POST", "/admin/act", Origin="null"))[0] == 403


async def test_tokens_are_required_where_configured(guarded: Port) -> None:
    assert (await guarded.call("GET", "/healthz"))[0] == 200
    assert (await guarded.call("GET", "/metrics"))[0] == 401
    assert (await guarded.call("GET", "/metrics", Authorization="Bearer wrong"))[0] == 401
    assert (await guarded.call("GET", "/metrics", Authorization="Basic r-secret"))[0] == 401
    assert (await guarded.call("GET", "/metrics", Authorization="Bearer r-secret"))[0] == 200


async def test_readers_look_and_operators_act(guarded: Port) -> None:
    status, body = await guarded.call("POST", "/admin/act", Authorization="Bearer r-secret")
    assert (status, body["error"]["code"]) == (403, "forbidden")
    assert (await guarded.call("POST", "/admin/act", Authorization="Bearer o-secret"))[0] == 200


async def test_a_question_that_changes_nothing_is_a_readers_whatever_its_method(guarded: Port) -> None:
    assert await guarded.call("POST", "/admin/ask", Authorization="Bearer r-secret") == (200, {"answer": 42})
    assert (await guarded.call("POST", "/admin/ask", Authorization="Bearer wrong"))[0] == 401
    status, _ = await guarded.call("POST", "/admin/ask", Authorization="Bearer r-secret", Origin="http://evil.example")
    assert status == 403
    assert (await guarded.call("POST", "/admin/nowhere", Authorization="Bearer r-secret"))[0] == 403


@pytest.mark.parametrize(
    ("line", "status"), [(b"Authorization: Bearer \xff", b"401"), (b"Origin: http://\xff", b"403")]
)
async def test_header_bytes_that_are_no_text_are_refused_like_others(guarded: Port, line: bytes, status: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(guarded.url.rpartition(":")[2]))
    writer.write(b"GET /admin/config HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + line + b"\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 " + status)
    writer.close()
    assert guarded.failures == []


async def test_metrics_may_be_made_public() -> None:
    port = Port()
    server = await port.start(AdminAccess(TOKENS, public_metrics=True))
    try:
        assert (await port.call("GET", "/metrics"))[0] == 200
        assert (await port.call("GET", "/admin/refuse"))[0] == 401
    finally:
        await server.close()


@pytest.mark.parametrize(
    "garbage",
    [b"hello there\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n"],
)
async def test_garbage_is_answered_and_worth_one_quiet_line(garbage: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    log = Log()
    app = build_app(
        registry=CollectorRegistry(),
        readiness=lambda: Readiness(True),
        access=AdminAccess(),
        on_error=lambda *_: pytest.fail("no handler was called"),
    )
    server = AdminServer(app, log)  # type: ignore[arg-type]
    await server.start("127.0.0.1", 0)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(garbage)
        assert (await reader.read(64)).startswith(b"HTTP/1.0 400 Bad Request")
        writer.close()
        await writer.wait_closed()
    finally:
        await server.close()
    assert [(level, event) for level, event, _ in log.lines] == [("debug", "admin port: not HTTP")]
    assert "127.0.0.1" in log.lines[0][2]["peer"]
    assert capfd.readouterr().err == ""
