"""The closed table of errors a client can see, and the one exception that carries them.

Every answer this project makes up itself (not relays) is a row here; `tests/unit/test_error_table.py` holds the
golden body of each. The message begins with its origin (`gir:` or `agent:`), so a reader knows who is speaking.
"""

import enum

import msgspec


class ErrorRow(msgspec.Struct, frozen=True):
    """HTTP status, OpenAI error `type` and `code`, and whether `Retry-After` / `x-should-retry: false` go along."""

    status: int
    type: str
    code: str
    retry_after: bool = False
    should_retry: bool | None = None
    """Value for `x-should-retry`, the header the official clients obey; None leaves it out."""


_INVALID = "invalid_request_error"


class ErrorKind(enum.Enum):
    """Every error this project answers with by itself."""

    BAD_JSON = ErrorRow(400, _INVALID, "invalid_json")
    BAD_REQUEST = ErrorRow(400, _INVALID, "invalid_request")
    BAD_FRAMING = ErrorRow(400, _INVALID, "bad_http")
    UNAUTHENTICATED = ErrorRow(401, "authentication_error", "invalid_api_key")
    FORBIDDEN = ErrorRow(403, "permission_error", "forbidden")
    MODEL_NOT_FOUND = ErrorRow(404, _INVALID, "model_not_found")
    NOT_FOUND = ErrorRow(404, _INVALID, "not_found")
    METHOD_NOT_ALLOWED = ErrorRow(405, _INVALID, "method_not_allowed")
    SLOW_CLIENT = ErrorRow(408, _INVALID, "request_timeout")
    BODY_TOO_LARGE = ErrorRow(413, _INVALID, "body_too_large")
    UNSUPPORTED_MEDIA = ErrorRow(415, _INVALID, "unsupported_media_type")
    HEADERS_TOO_LARGE = ErrorRow(431, _INVALID, "headers_too_large")
    RATE_LIMITED = ErrorRow(429, "rate_limit_error", "rate_limit_exceeded", True)
    OVERLOADED = ErrorRow(429, "rate_limit_error", "overloaded", True)
    INTERNAL = ErrorRow(500, "server_error", "internal_error")
    UPSTREAM_FAILED = ErrorRow(502, "server_error", "upstream_failed", False, False)
    NO_CAPACITY = ErrorRow(503, "server_error", "no_capacity", True)
    SHUTTING_DOWN = ErrorRow(503, "server_error", "shutting_down", True)
    AUTH_UNAVAILABLE = ErrorRow(503, "server_error", "auth_unavailable", True)
    """The issuer's keys cannot be had, so the token can be neither accepted nor refused."""
    LOOP_DETECTED = ErrorRow(508, "server_error", "loop_detected", False, False)
    DEADLINE_EXCEEDED = ErrorRow(504, "server_error", "deadline_exceeded", False, False)


class RequestError(Exception):
    """A request cannot be served; carries all that the answer needs.

    `origin` is `gir` or `agent`; `retry_after_s` is filled in by the stage that knows the drain rate or the next
    recovery, and rounded up (>= 1) when the answer is written.
    """

    def __init__(
        self,
        kind: ErrorKind,
        message: str,
        *,
        origin: str = "gir",
        param: str | None = None,
        retry_after_s: float | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.origin = origin
        self.param = param
        self.retry_after_s = retry_after_s
        self.reason = reason or kind.value.code

    def let_go(self) -> None:
        """Forget the frames this error has passed through: they hold the request's body, and some hold this error,
        so that only the collector, which is seldom seen here, would free them.
        """
        self.__traceback__ = self.__context__ = None


def error_body(kind: ErrorKind, message: str, *, origin: str = "gir", param: str | None = None) -> bytes:
    """OpenAI error JSON, as bytes, for `kind` with `message` after its origin."""
    row = kind.value
    return msgspec.json.encode(
        {"error": {"message": f"{origin}: {message}", "type": row.type, "param": param, "code": row.code}}
    )
