"""The data port: authorise, understand, wait at the gate, pick, relay, account. In this order, in one place.

A request is counted in a pod from the moment it is picked to the moment it is over, whatever happens; a pod that fails
before the client has seen anything costs it nothing but time, while other pods and attempts are left.
"""

import msgspec

from gir.clock import Clock
from gir.model.errors import ErrorKind, RequestError
from gir.net.exchange import Exchange
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from tier1_agent.attempt import Attempt, Delivered, Failed
from tier1_agent.catalogue import Catalogue
from tier1_agent.config import ForwardSection
from tier1_agent.fleet import Fleet
from tier1_agent.gate import Door, Waiter
from tier1_agent.job import Job, authorize, read_job
from tier1_agent.picker import Pick, pick
from tier1_agent.pods import Pod, PodState
from tier1_agent.record import Record, Recorder

RETRY_AFTER_S = 2.0
"""When no pod can be had: scrapes bring news several times in that time."""
BUSY_MAX = 2
"""Pods that may say they are full before we believe that all are."""


class Upstreams:
    """A connection pool for each pod, made when first needed."""

    def __init__(self, limits: ForwardSection, clock: Clock) -> None:
        self._limits = PoolLimits(connect_s=limits.connect_s)
        self._clock = clock
        self._pools: dict[str, UpstreamPool] = {}

    def of(self, pod: Pod) -> UpstreamPool:
        """The connections to `pod`."""
        pool = self._pools.get(pod.spec.url)
        if pool is None:
            pool = UpstreamPool(Endpoint.parse(pod.spec.url), self._limits, clock=self._clock)
            self._pools[pod.spec.url] = pool
        return pool

    async def keep_only(self, urls: frozenset[str]) -> None:
        """Close the idle connections of pods that are gone; a pool in use stays until the next call."""
        for url in [url for url in self._pools if url not in urls]:
            pool = self._pools[url]
            pool.purge_idle()
            if not pool.active:
                del self._pools[url]
                await pool.close()

    async def close(self) -> None:
        """Close every connection."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await pool.close()


class Proxy:
    """Handler of the data port's HTTP server."""

    def __init__(
        self,
        fleet: Fleet,
        door: Door,
        upstreams: Upstreams,
        catalogue: Catalogue,
        recorder: Recorder,
        *,
        limits: ForwardSection,
        token: str | None,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._door = door
        self._upstreams = upstreams
        self._catalogue = catalogue
        self._recorder = recorder
        self._limits = limits
        self._token = token.encode() if token is not None else None
        self._clock = clock
        self.draining = False

    async def __call__(self, exchange: Exchange) -> None:
        """Serve one request."""
        if exchange.head.path == "/healthz":
            self._tell_health(exchange)
            return
        try:
            await self._route(exchange)
        except RequestError as error:
            self._recorder.answered(error)
            raise

    async def _route(self, exchange: Exchange) -> None:
        head = exchange.head
        authorize(head, self._token)
        if head.method in ("GET", "HEAD") and (head.path == "/v1/models" or head.path.startswith("/v1/models/")):
            self._catalogue.answer(exchange)
            return
        job = await read_job(exchange, self._fleet, now_s=self._clock.monotonic_s(), total_s=self._limits.total_s)
        await self._serve(job)

    def _tell_health(self, exchange: Exchange) -> None:
        """Data-path probe of the routers: can a request sent now be served here?"""
        ready = any(pod.state is PodState.READY for pod in self._fleet.pods())
        status = 503 if self.draining or not ready else 200
        state = "draining" if self.draining else "ok" if ready else "no ready pod"
        exchange.respond(status, [(b"content-type", b"application/json")], msgspec.json.encode({"status": state}))

    async def _serve(self, job: Job) -> None:
        recorder = self._recorder
        record = recorder.open(job)
        try:
            waiter = await self._door.enter(job.pool, job.criticality, job.deadline_s)
            recorder.admitted(record)
            await self._attempts(job, waiter, record)
        except RequestError as error:
            record.refused(error)
            raise
        finally:
            recorder.close(record)

    async def _attempts(self, job: Job, waiter: Waiter | None, record: Record) -> None:
        """Pods in turn until one serves the request. Raises RequestError when none does."""
        tried: set[int] = set()
        failed: Failed | None = None
        busy = 0
        try:
            while len(tried) < self._limits.attempts_max and busy < BUSY_MAX:
                choice = self._pick(job, tried, record)
                if choice is None:
                    break
                tried.add(choice.pod.bit)
                result = await self._attempt(job, choice, waiter, record)
                if isinstance(result, Delivered):
                    record.delivered(result)
                    return
                failed = result
                busy += not result.fault
                if result.kind is ErrorKind.DEADLINE_EXCEEDED:
                    break
        finally:
            self._door.entered(job.pool, waiter)
        if failed is None:
            raise self._nobody(job)
        if failed.answer is None:
            raise RequestError(failed.kind, failed.detail, retry_after_s=RETRY_AFTER_S)
        record.passed_on(failed)
        job.exchange.respond(*failed.answer)

    def _pick(self, job: Job, tried: set[int], record: Record) -> Pick | None:
        now_s = self._clock.monotonic_s()
        choice = pick(job.pool, job.pick, now_s=now_s, draw=self._clock.random.random(), tried=tried)
        if choice is not None:
            self._recorder.picked(record, choice, self._clock.monotonic_s() - now_s)
        return choice

    async def _attempt(self, job: Job, choice: Pick, waiter: Waiter | None, record: Record) -> Failed | Delivered:
        """One pod: the request is counted there from now until this returns, however it ends."""
        pool, pod = job.pool, choice.pod
        ticket = pool.dispatched(
            pod,
            self._clock.monotonic_s(),
            tokens=job.pick.tokens,
            hashes=job.pick.hashes,
            blocks_cached=choice.blocks_cached,
            prompt_bytes=job.prompt_bytes,
            adapter=job.pick.adapter,
            streams=job.peeked.stream,
        )
        self._door.entered(pool, waiter)
        ok, usage = False, None
        try:
            result = await Attempt(job, ticket, self._upstreams.of(pod), self._limits, self._clock).run()
            if result.fault:
                pool.fault(pod, self._clock.monotonic_s())
            elif isinstance(result, Delivered):
                ok, usage = result.served, result.usage
            self._recorder.attempted(record, ticket, result)
            return result
        finally:
            pool.finished(ticket, self._clock.monotonic_s(), ok=ok, usage=usage)
            self._door.left(pool)

    def _nobody(self, job: Job) -> RequestError:
        """Why no pod could be picked at all: full ones come back soon, none at all is another matter."""
        pool, cap = job.pool, job.pool.settings.concurrent_max_per_pod
        if cap is not None and any(pod.state is not PodState.GONE and pod.in_flight >= cap for pod in pool.pods):
            return self._door.gate(pool).refusal("none can take the request")
        message = f"no pod of {pool.model} can take the request now"
        return RequestError(ErrorKind.NO_CAPACITY, message, retry_after_s=RETRY_AFTER_S)
