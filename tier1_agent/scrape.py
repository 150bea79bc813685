"""Reads every pod's metrics on its own schedule: one task, one deadline and one size cap each, so that a pod that
hangs delays nobody. A pod without metrics is asked for signs of life instead.

A thin shell: pages become `Signals` in `dialects`, and what they mean is decided by `Pool`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from gir.clock import Clock
from gir.model.ids import ModelId, PodId
from gir.tasks import TaskSet
from tier1_agent import dialects
from tier1_agent.config import ScrapeSection
from tier1_agent.fleet import Change, Fleet
from tier1_agent.pods import Pod, PodSpec
from tier1_agent.signals import Signals

JITTER = 0.1
"""Share of the interval by which periods differ, so that pods are not all asked in the same instant."""
SCRAPES_PER_S_MAX = 400.0
"""Over all pods: with more of them each one is asked less often."""


class ScrapeFailed(Exception):  # noqa: N818  # says what happened
    """No usable answer; the message is one line."""


class _Card(msgspec.Struct):
    id: str
    parent: str | None = None


class _Cards(msgspec.Struct):
    data: list[msgspec.Raw] = []


_decode_cards = msgspec.json.Decoder(_Cards).decode
_FAILURES = (ScrapeFailed, aiohttp.ClientError, TimeoutError, OSError, ValueError)


class Observed(msgspec.Struct, frozen=True):
    """One scrape, for whoever counts them."""

    pod: PodId
    error: str = ""
    took_s: float = 0.0
    restarted: bool = False


class Scraper:
    """Keeps one task per listed pod.

    `on_scrape` hears of every scrape; `on_news` may wake waiting requests; `on_tick(late_s)` hears how late each period
    came, which is how long the event loop stood still.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: ScrapeSection,
        *,
        clock: Clock,
        tasks: TaskSet,
        on_scrape: Callable[[Observed], None],
        on_news: Callable[[], None],
        on_tick: Callable[[float], None] = lambda _late_s: None,
    ) -> None:
        self._fleet = fleet
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._on_scrape = on_scrape
        self._on_news = on_news
        self._on_tick = on_tick
        self._session: aiohttp.ClientSession | None = None
        self._ticking: asyncio.Task[Any] | None = None
        self._running: dict[PodId, asyncio.Task[Any]] = {}
        self._dialects: dict[PodId, dialects.Dialect] = {}
        self.cards: dict[PodId, dict[ModelId, str]] = {}
        """What each pod's own /v1/models says of each name, as JSON."""

    @property
    def interval_s(self) -> float:
        """Period of each pod: the configured one, longer only when there are very many pods."""
        return max(self._settings.interval_s, len(self._running) / SCRAPES_PER_S_MAX)

    def start(self) -> None:
        """Begin; call inside the running loop."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._ticking = self._tasks.spawn(self._tick_for_ever(), name="scrape tick")

    def follow(self, change: Change) -> None:
        """Scrape what was added, leave what was removed."""
        for id_ in change.removed:
            if id_ in self._running:
                self._running.pop(id_).cancel()
            self._dialects.pop(id_, None)
            self.cards.pop(id_, None)
        for id_ in change.added:
            pod = self._fleet.pod(id_)
            if pod is not None:
                self._running[id_] = self._tasks.spawn(self._follow_pod(pod.spec), name=f"scrape {id_}")

    async def close(self) -> None:
        """Stop and close all connections."""
        tasks = [task for task in (*self._running.values(), self._ticking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # first, so that each gives its connection back
        self._running.clear()
        if self._session is not None:
            await self._session.close()

    # Schedules.

    async def _tick_for_ever(self) -> None:
        while True:
            began_s = self._clock.monotonic_s()
            await self._clock.sleep_s(self._settings.interval_s)
            now_s = self._clock.monotonic_s()
            self._on_tick(now_s - began_s - self._settings.interval_s)
            self._fleet.tick(now_s)
            self._on_news()

    async def _follow_pod(self, spec: PodSpec) -> None:
        models_at_s = 0.0
        while True:
            started_s = self._clock.monotonic_s()
            pod = self._fleet.pod(spec.id)
            if pod is None:
                return
            await self._scrape(pod)
            if started_s >= models_at_s and await self._read_models(pod):
                models_at_s = started_s + self._settings.models_interval_s
            period_s = self.interval_s * (1.0 + JITTER * (2.0 * self._clock.random.random() - 1.0))
            await self._clock.sleep_s(period_s - (self._clock.monotonic_s() - started_s))

    async def _scrape(self, pod: Pod) -> None:
        started_s, own_at_start = self._clock.monotonic_s(), pod.in_flight
        error, restarted = "", False
        try:
            signals = await (self._read_metrics(pod.spec) if pod.spec.metrics_url else self._see_life(pod.spec))
        except _FAILURES as failure:
            error = f"{type(failure).__name__}: {failure}"
            self._fleet.missed(pod.spec.id, self._clock.monotonic_s())
        else:
            now_s = self._clock.monotonic_s()
            restarted = self._fleet.scraped(pod.spec.id, signals, now_s, own_at_start=own_at_start)
            self._on_news()
        took_s = self._clock.monotonic_s() - started_s
        self._on_scrape(Observed(pod.spec.id, error, took_s, restarted))

    # Readings.

    async def _read_metrics(self, spec: PodSpec) -> Signals | None:
        assert spec.metrics_url is not None
        status, page = await self._get(spec.metrics_url, spec)
        if status != 200:
            raise ScrapeFailed(f"status {status}")
        signals, dialect = dialects.read(page, last=self._dialects.get(spec.id))
        if dialect is not None:
            self._dialects[spec.id] = dialect
        return signals

    async def _see_life(self, spec: PodSpec) -> Signals | None:
        """Any answer below 500 is life and tells no more; /health first, for servers that have it."""
        status, _ = await self._get(f"{spec.url}/health", spec)
        if status in (404, 405):
            status, _ = await self._get(f"{spec.url}/v1/models", spec)
        if status >= 500:
            raise ScrapeFailed(f"status {status}")
        return None

    async def _read_models(self, pod: Pod) -> bool:
        """The pod's own model list: what it says of each name, and which adapters it has loaded. False: unreadable."""
        spec = pod.spec
        try:
            status, page = await self._get(f"{spec.url}/v1/models", spec)
            cards = {(card := msgspec.json.decode(raw, type=_Card)).id: (card, raw) for raw in _decode_cards(page).data}
        except (*_FAILURES, msgspec.MsgspecError):
            return False
        if status != 200:
            return False
        self.cards[spec.id] = {ModelId(name): bytes(raw).decode() for name, (_, raw) in cards.items()}
        adapters = [ModelId(name) for name, (card, _) in cards.items() if card.parent is not None]
        self._fleet.listed(spec.id, [name for name in adapters if name != spec.model])
        return True

    async def _get(self, url: str, spec: PodSpec) -> tuple[int, bytes]:
        """Status and body; raises ScrapeFailed when the body is longer than the cap."""
        assert self._session is not None, "start() comes first"
        headers = {"Authorization": f"Bearer {spec.api_key}"} if spec.api_key else None
        limit = self._settings.page_bytes_max
        async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
            page = bytearray()
            async for data in answer.content.iter_any():
                page += data
                if len(page) > limit:
                    raise ScrapeFailed(f"more than {limit} bytes")
            return answer.status, bytes(page)
