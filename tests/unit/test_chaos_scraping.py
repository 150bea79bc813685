"""What several routers, and several lives of one, say is summed as if it were one that never ended."""

import json
from pathlib import Path

import pytest

from chaos import scraping
from chaos.members import Router
from chaos.scraping import Scraper, read_logs
from gir.clock import ManualClock


class Pages:
    """Metrics pages by admin address; None for a router that does not answer."""

    def __init__(self) -> None:
        self.by_url: dict[str, str | None] = {}

    def get(self, url: str) -> tuple[int, bytes]:
        page = self.by_url[url.removesuffix("/metrics")]
        return (0, b"") if page is None else (200, page.encode())


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    made = Pages()
    monkeypatch.setattr(scraping, "get", made.get)
    return made


def routers(folder: Path, count: int = 2) -> list[Router]:
    return [Router(f"router-{n}", (n, 100 + n, 200 + n), folder / f"router-{n}.yaml") for n in range(count)]


def test_counters_survive_a_restart_and_gauges_do_not_add_up_over_lives(pages: Pages, tmp_path: Path) -> None:
    one, two = routers(tmp_path)
    scraper = Scraper([one, two], ManualClock())
    pages.by_url = {
        one.admin_url: 'gir_requests_total{a="b"} 10\ngir_requests_in_flight 2\n',
        two.admin_url: 'gir_requests_total{a="b"} 5\ngir_requests_in_flight 1\n',
    }
    first = scraper.look()
    assert first is not None
    assert first.samples == {'gir_requests_total{a="b"}': 15.0, "gir_requests_in_flight": 3.0}
    pages.by_url[one.admin_url] = None
    gone = scraper.look()
    assert gone is not None and gone.samples['gir_requests_total{a="b"}'] == 15.0
    pages.by_url[one.admin_url] = 'gir_requests_total{a="b"} 1\ngir_requests_in_flight 0\n'
    again = scraper.look()
    assert again is not None
    assert again.samples == {'gir_requests_total{a="b"}': 16.0, "gir_requests_in_flight": 1.0}


def test_nobody_answering_is_no_evidence(pages: Pages, tmp_path: Path) -> None:
    (one,) = routers(tmp_path, 1)
    pages.by_url = {one.admin_url: None}
    assert Scraper([one], ManualClock()).look() is None


def test_logs_tell_decisions_by_request_and_everything_else_as_lines(tmp_path: Path) -> None:
    (one,) = routers(tmp_path, 1)
    stamp = "2026-01-01T00:00:00.000+00:00"
    lines = [
        {"time": stamp, "request_id": "r1", "method": "POST", "status": 429, "duration_ms": 0.4},
        {"time": stamp, "request_id": "r2", "method": "POST", "status": 200, "duration_ms": 90.0, "limits_ms": 12.5},
        {"time": stamp, "request_id": "r3", "method": "POST", "status": 200, "duration_ms": 90.0},
        {"time": stamp, "request_id": "r4", "method": "GET", "status": 200, "duration_ms": 1.0},
        {"time": stamp, "level": "error", "event": "limit store", "up": False},
    ]
    one.log_path.write_text("\n".join([*map(json.dumps, lines), "Traceback: not JSON"]))
    decisions, others = read_logs([one], ManualClock())
    assert {name: (d.took_ms, d.asked_ms) for name, d in decisions.items()} == {
        "r1": (0.4, 0.0), "r2": (12.5, 12.5), "r3": (0.0, 0.0),
    }  # fmt: skip
    assert [(line.event, line.level) for line in others] == [("limit store", "error"), ("not JSON", "error")]
