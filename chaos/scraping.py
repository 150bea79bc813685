"""Looks at every router: metrics while it runs, its log when all is over."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from chaos.evidence import Decision, LogLine, Scrape, samples
from chaos.fleet import get
from chaos.members import Router
from gir.clock import Clock

_COUNTS = re.compile(r"_(total|count|sum)(\{|$)")


class Scraper:
    """Sums the samples of all routers, and of all lives of each: a router that is started again counts from zero,
    and one that does not answer is taken to stand where it was last seen."""

    def __init__(self, routers: Sequence[Router], clock: Clock) -> None:
        self._routers = routers
        self._clock = clock
        self._latest: dict[str, dict[str, float]] = {}
        self._earlier_lives: dict[str, float] = {}

    def look(self) -> Scrape | None:
        """One look; None when no router answers."""
        answered = False
        for router in self._routers:
            status, page = get(f"{router.admin_url}/metrics")
            if status == 200:
                answered = True
                self._take(router.name, samples(page.decode()))
        if not answered:
            return None
        total = dict(self._earlier_lives)
        for page_samples in self._latest.values():
            for name, value in page_samples.items():
                total[name] = total.get(name, 0.0) + value
        return Scrape(self._clock.monotonic_s(), total)

    def _take(self, router: str, now: dict[str, float]) -> None:
        before = self._latest.get(router, {})
        if any(now.get(name, 0.0) < value for name, value in before.items() if _COUNTS.search(name)):
            for name, value in before.items():
                if _COUNTS.search(name):
                    self._earlier_lives[name] = self._earlier_lives.get(name, 0.0) + value
        self._latest[router] = now


class _Line(msgspec.Struct):
    time: str = ""
    event: str = ""
    """Absent in lines of the access log."""
    level: str = ""
    request_id: str = ""
    method: str = ""
    status: int = 0
    duration_ms: float = 0.0
    limits_ms: float | None = None


def read_logs(routers: Iterable[Router], clock: Clock) -> tuple[dict[str, Decision], list[LogLine]]:
    """What routers logged: by request id how long the decision took, and every line that is about no request."""
    decisions: dict[str, Decision] = {}
    lines = []
    ahead_s = clock.wall_s() - clock.monotonic_s()
    for router in routers:
        for text in router.log_path.read_bytes().splitlines():
            try:
                line = msgspec.json.decode(text, type=_Line)
            except msgspec.MsgspecError:
                line = _Line(event="not JSON", level="error")
            if not line.event:
                if line.method != "POST":
                    continue
                asked_ms = line.limits_ms or 0.0
                decisions[line.request_id] = Decision(line.duration_ms if line.status == 429 else asked_ms, asked_ms)
            else:
                at_s = datetime.fromisoformat(line.time).timestamp() - ahead_s if line.time else 0.0
                lines.append(LogLine(router.name, at_s, line.event, line.level, text.decode(errors="replace")))
    return decisions, lines
