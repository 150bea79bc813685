"""What the watch counts of health must not grow a series with every restart of an agent."""

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from gir.health.events import EventKind, HealthEvent
from gir.health.registry import Registry
from gir.model.cluster import Intent
from gir.model.ids import ClusterId
from gir.model.policy import PolicySnapshot
from gir.telemetry.metrics import RouterMetrics
from gir.watch import Watch


class Silent:
    """Stands for every part that this test does not ask."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: 0


class Told(Registry):
    """A registry that has these events to tell."""

    __slots__ = ("_told",)

    def __init__(self, events: tuple[HealthEvent, ...]) -> None:
        super().__init__(PolicySnapshot(), now_s=0.0, jitter=lambda: 0.5)
        self._told = list(events)

    def take_events(self) -> list[HealthEvent]:
        return self._told


def counted(*events: HealthEvent) -> list[str]:
    collectors = CollectorRegistry()
    metrics, rest = RouterMetrics(collectors), Silent()
    watch = Watch(
        clock=rest,
        registry=Told(events),
        dispatcher=rest,
        waiting=rest,
        trials=rest.look,
        pools=rest,
        metrics=metrics,
        log=rest,
    )
    watch.look()
    text = generate_latest(collectors).decode()
    return [line for line in text.splitlines() if line.startswith("gir_cluster_events_total{")]


def event(kind: EventKind, after: str) -> HealthEvent:
    return HealthEvent(at_s=0.0, kind=kind, cluster=ClusterId("eu-1"), after=after)


def test_changes_of_status_and_intent_are_counted_by_their_new_value() -> None:
    lines = counted(event(EventKind.STATUS, "suspect"), event(EventKind.INTENT, Intent.DRAIN.value))
    assert sorted(line.split(",to=")[1] for line in lines) == ['"drain"} 1.0', '"suspect"} 1.0']


def test_epochs_weights_pauses_and_models_are_counted_without_their_value() -> None:
    kinds = (EventKind.EPOCH, EventKind.WEIGHT, EventKind.GAP, EventKind.POOLS)
    lines = counted(*(event(kind, f"{number}") for kind in kinds for number in range(20)))
    assert [line.split(",to=")[1] for line in lines] == ['""} 20.0'] * 4
