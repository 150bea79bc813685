"""What operators hear when a shared store goes away: one line, one gauge, and the same when it is back."""

from typing import Any

from prometheus_client import CollectorRegistry

from gir.observers import Observers
from gir.telemetry.metrics import RouterMetrics


class Lines:
    """A log that remembers."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.said.append(("info", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.said.append(("error", event, fields))


def test_an_outage_of_the_limit_store_is_a_line_and_a_gauge() -> None:
    registry, log = CollectorRegistry(), Lines()
    observers = Observers(RouterMetrics(registry), log)  # type: ignore[arg-type]
    observers.store_changed(False, "no answer within 50 ms", 12.34)
    assert registry.get_sample_value("gir_limits_degraded") == 1.0
    observers.store_changed(True, "", 3.0)
    assert registry.get_sample_value("gir_limits_degraded") == 0.0
    assert log.said == [
        ("error", "limit store", {"up": False, "reason": "no answer within 50 ms", "lasted_s": 12.3}),
        ("info", "limit store", {"up": True, "reason": "", "lasted_s": 3.0}),
    ]


def test_a_ledger_that_cannot_be_told_is_a_line() -> None:
    log = Lines()
    observers = Observers(RouterMetrics(CollectorRegistry()), log)  # type: ignore[arg-type]
    observers.usage_told(False, "refused")
    observers.usage_told(True, "")
    assert [(level, fields["told"]) for level, _, fields in log.said] == [("error", False), ("info", True)]
