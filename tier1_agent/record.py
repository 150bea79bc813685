"""What became of each request: metrics, the last minute's outcomes for beats, and the access log."""

from gir.clock import Clock
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, PodId
from gir.model.outcome import Outcome
from gir.model.prefix import BLOCK_BYTES
from gir.model.request import Usage
from gir.net.message import RequestHead
from gir.telemetry.logs import AccessLog, AccessRecord, Logger, wall_stamp
from gir.telemetry.metrics import AgentMetrics
from tier1_agent.attempt import Delivered, Failed
from tier1_agent.capacity import Recent
from tier1_agent.job import Job
from tier1_agent.picker import Pick
from tier1_agent.pods import Ticket


class Record:
    """One request from arrival to its one outcome. Until something else is known, its client has left."""

    __slots__ = ("admitted_s", "attempts", "error", "job", "outcome", "pod", "reason", "ttft_s", "usage")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.outcome = Outcome.CLIENT_GONE
        self.admitted_s: float | None = None
        self.attempts = 0
        self.pod = PodId("")
        self.reason = ""
        self.error = ""
        self.ttft_s: float | None = None
        self.usage: Usage | None = None

    def picked(self, choice: Pick) -> None:
        """An attempt begins."""
        self.attempts += 1
        self.pod, self.reason = choice.pod.spec.id, choice.reason

    def delivered(self, result: Delivered) -> None:
        """The client has an answer, whole or cut."""
        self.outcome, self.usage, self.error = result.outcome, result.usage, result.detail

    def refused(self, error: RequestError) -> None:
        """The client gets one of our own errors."""
        self.error = error.kind.value.code
        if self.admitted_s is None:
            self.outcome = Outcome.REJECTED
        else:
            self.outcome = Outcome.EXPIRED if error.kind is ErrorKind.DEADLINE_EXCEEDED else Outcome.FAILED

    def passed_on(self, failed: Failed) -> None:
        """The client gets the engine's own failure."""
        self.outcome, self.error = Outcome.FAILED, failed.detail


class Recorder:
    """Counts. Also the HTTP server's observer."""

    def __init__(self, metrics: AgentMetrics, clock: Clock, log: Logger, access_log: AccessLog | None) -> None:
        self._metrics = metrics
        self._clock = clock
        self._log = log
        self._access_log = access_log
        self._recent: dict[ModelId, Recent] = {}

    def recent(self, model: ModelId) -> Recent:
        """Outcomes of the last minute on pods of `model`."""
        return self._recent.setdefault(model, Recent())

    def open(self, job: Job) -> Record:
        """A request was understood."""
        self._metrics.in_flight.one.inc()
        return Record(job)

    def admitted(self, record: Record) -> None:
        """It may go to a pod: through the gate, if there is one."""
        now_s = self._clock.monotonic_s()
        record.admitted_s = now_s
        job = record.job
        if job.pool.settings.concurrent_max_per_pod is not None:
            self._metrics.gate_wait_s.child(job.pool.model).observe(now_s - job.exchange.arrived_s)

    def picked(self, record: Record, choice: Pick, took_s: float) -> None:
        """A pod was chosen."""
        record.picked(choice)
        metrics, job = self._metrics, record.job
        metrics.picks.child(choice.pod.spec.id, choice.reason).inc()
        metrics.pick_s.one.observe(took_s)
        metrics.prompt_bytes.child(job.pool.model).inc(job.prompt_bytes)
        if choice.blocks_cached:
            metrics.prefix_bytes.child(job.pool.model).inc(choice.blocks_cached * BLOCK_BYTES)

    def attempted(self, record: Record, ticket: Ticket, result: Failed | Delivered) -> None:
        """An attempt has ended by itself."""
        now_s, job = self._clock.monotonic_s(), record.job
        if ticket.first_token_s is not None:
            record.ttft_s = ticket.first_token_s - job.exchange.arrived_s
            self._metrics.ttft_s.child(job.pool.model).observe(record.ttft_s)
        ok = not result.fault
        word = "fault" if result.fault else "ok" if isinstance(result, Delivered) else "busy"
        self._metrics.pod_attempts.child(ticket.pod.spec.id, word).inc()
        self.recent(job.pool.model).note(now_s, ok=ok, ttft_s=record.ttft_s if ticket.first_token_s else None)
        if result.fault:
            self._log.warning(
                "attempt failed",
                pod=ticket.pod.spec.id,
                request_id=job.request_id.decode("latin-1"),
                detail=result.detail,
                seen_by_client=isinstance(result, Delivered),
            )

    def close(self, record: Record) -> None:
        """The request is over."""
        metrics, job, now_s = self._metrics, record.job, self._clock.monotonic_s()
        duration_s = now_s - job.exchange.arrived_s
        metrics.in_flight.one.dec()
        metrics.requests.child(job.pool.model, record.outcome.value).inc()
        metrics.request_s.child(job.pool.model).observe(duration_s)
        usage = record.usage
        if usage is not None:
            self._count_tokens(record, usage, duration_s)
        if record.outcome is Outcome.REJECTED:
            metrics.gate_refused.child(job.pool.model, record.error).inc()
        if self._access_log is not None:
            self._access_log.write(self._line(record, duration_s))

    def _count_tokens(self, record: Record, usage: Usage, duration_s: float) -> None:
        metrics, model = self._metrics, record.job.pool.model
        if not usage.estimated:
            metrics.tokens.child(model, "prompt").inc(usage.prompt_tokens)
            metrics.tokens.child(model, "completion").inc(usage.completion_tokens)
            metrics.tokens.child(model, "cached").inc(usage.cached_tokens)
        if record.ttft_s is not None and usage.completion_tokens > 1:
            metrics.per_token_s.child(model).observe((duration_s - record.ttft_s) / (usage.completion_tokens - 1))

    def _line(self, record: Record, duration_s: float) -> AccessRecord:
        job, usage = record.job, record.usage
        counted = usage if usage is not None and not usage.estimated else None
        return AccessRecord(
            time=wall_stamp(self._clock.wall_s()),
            request_id=job.request_id.decode("latin-1"),
            method="POST",
            path=job.exchange.head.path,
            model=job.model,
            criticality=job.criticality.label,
            pod=record.pod,
            reason=record.reason,
            attempts=record.attempts,
            outcome=record.outcome.value,
            error=record.error,
            stream=job.peeked.stream,
            duration_ms=round(duration_s * 1e3, 3),
            ttft_ms=round(record.ttft_s * 1e3, 3) if record.ttft_s is not None else None,
            prompt_tokens=counted.prompt_tokens if counted is not None else None,
            completion_tokens=counted.completion_tokens if counted is not None else None,
            cached_tokens=counted.cached_tokens if counted is not None else None,
            bytes_sent=job.exchange.bytes_sent,
        )

    def answered(self, error: RequestError) -> None:
        """A client gets an error of our own making."""
        self._metrics.errors.child(error.kind.value.code).inc()

    def refused(self, kind: ErrorKind) -> None:
        """The server turned a request away before it was read."""
        self._metrics.refused.child(kind.value.code).inc()

    def handler_failed(self, head: RequestHead, error: BaseException) -> None:
        """A bug: the client got a 500."""
        self._metrics.errors.child(ErrorKind.INTERNAL.value.code).inc()
        self._log.error("handler failed", method=head.method, path=head.path, exc_info=error)
