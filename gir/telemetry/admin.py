"""The admin port both tiers have: /healthz, /readyz, /metrics, and whatever a tier adds.

Access is by bearer token with a role, or, when no token is configured, from this machine only. Browsers are kept from
acting for somebody else: a request that names a foreign Origin is refused, and without tokens so is a foreign Host name
(DNS rebinding). Errors are JSON in the shape of the data port's.
"""

import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import CollectorRegistry

from gir.model.errors import ErrorKind, RequestError, error_body
from gir.telemetry.logs import Logger

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
H = TypeVar("H", bound=Callable[..., Awaitable[web.StreamResponse]])
READER = "reader"
OPERATOR = "operator"
caller: ContextVar[str] = ContextVar("caller")
"""Name of the token (or `local`) the request being handled came with, for the audit log."""
BODY_BYTES_MAX = 1024 * 1024
PUBLIC_PATHS = frozenset({"/healthz", "/readyz"})
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_JSON = "application/json"


class AdminToken(msgspec.Struct, frozen=True, kw_only=True):
    """One credential of the admin port; only the digest is kept."""

    name: str
    digest: bytes
    """SHA-256 of the token."""
    role: str = READER
    """`reader` may look, `operator` may also act."""


def only_looks(handler: H) -> H:
    """Mark a handler that changes nothing whatever its method: a question too long for a URL is a POST to look at."""
    handler.__dict__["only_looks"] = True
    return handler


def digest_of(token: str) -> bytes:
    """What an AdminToken keeps of `token`."""
    # A header's bytes that are no UTF-8 arrive as surrogates.
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


class Readiness(msgspec.Struct, frozen=True):
    """Whether the process wants traffic, and what stands against it."""

    ready: bool
    reasons: tuple[str, ...] = ()


class AdminAccess:
    """Who may do what. `public_metrics` lets scrapers read /metrics without a token."""

    __slots__ = ("_public", "_tokens")

    def __init__(self, tokens: Iterable[AdminToken] = (), *, public_metrics: bool = False) -> None:
        self._tokens = tuple(tokens)
        self._public = PUBLIC_PATHS | {"/metrics"} if public_metrics else PUBLIC_PATHS

    def check(self, request: web.Request) -> str:
        """Name of the caller. Raises RequestError UNAUTHENTICATED or FORBIDDEN."""
        _check_origin(request)
        if request.path in self._public and request.method in _SAFE_METHODS:
            return "public"
        if not self._tokens:
            _check_loopback(request)
            return "local"
        token = self._token_of(request)
        looks = request.method in _SAFE_METHODS or getattr(request.match_info.handler, "only_looks", False)
        if token.role != OPERATOR and not looks:
            raise RequestError(
                ErrorKind.FORBIDDEN, f"token {token.name} has role {token.role}; {request.method} needs {OPERATOR}"
            )
        return token.name

    def _token_of(self, request: web.Request) -> AdminToken:
        scheme, _, presented = request.headers.get("Authorization", "").partition(" ")
        digest = digest_of(presented.strip())
        # Every token is compared, so that the time taken does not tell which one was close.
        found = [token for token in self._tokens if hmac.compare_digest(token.digest, digest)]
        if scheme.lower() != "bearer" or not found:
            raise RequestError(ErrorKind.UNAUTHENTICATED, "the admin API needs Authorization: Bearer <admin token>")
        return found[0]


def _check_origin(request: web.Request) -> None:
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        shown = origin[:80].encode("ascii", "backslashreplace").decode()
        raise RequestError(ErrorKind.FORBIDDEN, f"Origin {shown} is not this server; call it from its own pages")


def _check_loopback(request: web.Request) -> None:
    if not _is_loopback(request.remote or "") or not _is_loopback(_host_name(request.host)):
        raise RequestError(
            ErrorKind.FORBIDDEN, "no admin token is configured, so only http://127.0.0.1 or localhost may call"
        )


def _host_name(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def json_response(value: Any, *, status: int = 200) -> web.Response:
    """`value` as JSON; structs and enums included."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type=_JSON)


def build_app(
    *,
    registry: CollectorRegistry,
    readiness: Callable[[], Readiness],
    access: AdminAccess,
    on_error: Callable[[str, BaseException], None],
    before_scrape: Callable[[], None] = lambda: None,
    origin: str = "gir",
) -> web.Application:
    """The base application. Add routes to it before it starts; they get access control and error shapes.

    `on_error(what, error)` hears of handlers that fail; `before_scrape()` may refresh gauges.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            caller.set(access.check(request))
            return await handler(request)
        except RequestError as error:
            return error_response(error.kind, error.message, origin, error.param)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            return error_response(_kind_of(error.status), f"{request.method} {request.path}: {error.reason}", origin)
        except Exception as error:  # noqa: BLE001 - the last handler: answered, reported, and never fatal
            on_error(f"{request.method} {request.path}", error)
            return error_response(ErrorKind.INTERNAL, "the handler failed; see the log", origin)

    async def healthz(_: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def readyz(_: web.Request) -> web.Response:
        state = readiness()
        return json_response({"ready": state.ready, "reasons": state.reasons}, status=200 if state.ready else 503)

    async def metrics(request: web.Request) -> web.Response:
        before_scrape()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    app = web.Application(middlewares=[guard], client_max_size=BODY_BYTES_MAX)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


def error_response(kind: ErrorKind, message: str, origin: str, param: str | None = None) -> web.Response:
    """The answer for `kind`, in the shape of the data port's errors."""
    return web.Response(
        body=error_body(kind, message, origin=origin, param=param), status=kind.value.status, content_type=_JSON
    )


def _kind_of(status: int) -> ErrorKind:
    return {
        404: ErrorKind.NOT_FOUND,
        405: ErrorKind.METHOD_NOT_ALLOWED,
        413: ErrorKind.BODY_TOO_LARGE,
    }.get(status, ErrorKind.BAD_REQUEST)


class _Complaints(logging.Logger):
    """The library's own log. Whoever sends no HTTP is worth one quiet line, not a traceback a stranger can repeat."""

    def __init__(self, log: Logger | None) -> None:
        super().__init__("admin", logging.DEBUG)
        self._told = log

    def handle(self, record: logging.LogRecord) -> None:
        """Pass one record on."""
        error = record.exc_info[1] if record.exc_info else None
        if self._told is None:
            return
        if isinstance(error, HttpProcessingError):
            self._told.debug("admin port: not HTTP", peer=str(record.args or ""), error=type(error).__name__)
        elif record.levelno >= logging.WARNING:
            self._told.error("admin port", what=record.getMessage(), exc_info=error)


class AdminServer:
    """Serves one application on one address. `log` hears of callers that speak no HTTP, on level debug."""

    __slots__ = ("_app", "_complaints", "_runner", "port")

    def __init__(self, app: web.Application, log: Logger | None = None) -> None:
        self._app = app
        self._complaints = _Complaints(log)
        self._runner: web.AppRunner | None = None
        self.port = 0
        """Port in use, once started."""

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes any. Raises OSError when the address is not to be had."""
        self._runner = web.AppRunner(
            self._app, access_log=None, logger=self._complaints, handler_cancellation=True, shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, reuse_address=True)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        """Stop listening and end open requests. Safe to call twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
