"""What the parts report to operators, as log lines and counters: adapters of the parts' observer ports."""

from gir.model.errors import ErrorKind
from gir.net.message import RequestHead
from gir.telemetry.logs import Logger
from gir.telemetry.metrics import RouterMetrics


class Observers:
    """One object for the server, authentication and limits: each sees only its own methods."""

    def __init__(self, metrics: RouterMetrics, log: Logger) -> None:
        self._metrics = metrics
        self._log = log

    # The HTTP server

    def refused(self, kind: ErrorKind) -> None:
        """A request was turned away before a handler saw it."""
        self._metrics.refused.child(kind.value.code).inc()

    def handler_failed(self, head: RequestHead, error: BaseException) -> None:
        """A bug: the handler raised something other than RequestError."""
        self._metrics.errors.child(ErrorKind.INTERNAL.value.code).inc()
        self._log.error("handler failed", method=head.method, path=head.path, exc_info=error)

    # Authentication

    def keys_fetched(self, issuer: str, ok: bool, detail: str) -> None:
        """An issuer was asked for its keys."""
        self._metrics.jwks_fetches.child("ok" if ok else "failed").inc()
        (self._log.info if ok else self._log.warning)("issuer keys", issuer=issuer, ok=ok, detail=detail)

    def keys_file(self, ok: bool, detail: str) -> None:
        """The API keys file was read again."""
        (self._log.info if ok else self._log.error)("api keys file", ok=ok, detail=detail)

    # Limits

    def store_changed(self, up: bool, reason: str, lasted_s: float) -> None:
        """The shared store went away or came back."""
        (self._log.info if up else self._log.error)("limit store", up=up, reason=reason, lasted_s=round(lasted_s, 1))
        self._metrics.limit_degraded.one.set(float(not up))

    def store_called(self, took_s: float, ok: bool) -> None:
        """One round trip ended."""
        self._metrics.store_s.child("exchange").observe(took_s)
        if not ok:
            self._metrics.store_errors.child("exchange").inc()

    # Usage

    def usage_told(self, ok: bool, reason: str) -> None:
        """Telling the shared store what this replica counted began to fail, or works again."""
        (self._log.info if ok else self._log.error)("usage totals", told=ok, reason=reason)

    # Operators' orders

    def orders_store(self, up: bool, reason: str) -> None:
        """The store of operators' orders can no longer be used, or can again."""
        (self._log.info if up else self._log.error)("orders store", up=up, reason=reason)
        self._metrics.orders_degraded.one.set(float(not up))

    def orders_taken(self, version: int) -> None:
        """Another version is in force."""
        self._log.info("orders taken", version=version)
        self._metrics.orders_version.one.set(version)

    def orders_not_copied(self, reason: str) -> None:
        """The copy on this host could not be written, or not be read when it was needed."""
        self._log.warning("orders not copied to the state directory", reason=reason)

    # Background tasks

    def task_failed(self, name: str, error: BaseException) -> None:
        """A background task ended with an error."""
        self._metrics.task_failures.child(name.partition(" ")[0]).inc()
        self._log.error("background task failed", task=name, exc_info=error)
