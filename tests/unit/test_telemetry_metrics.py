"""Series: names, bounded labels, exposition, and cost."""

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import CollectorRegistry

from gir.telemetry.instruments import OTHER, Book, CounterFamily, HistogramFamily
from gir.telemetry.metrics import CAPS, AgentMetrics, RouterMetrics

CLOSED = frozenset(
    {
        *("code", "criticality", "filter", "kind", "method", "mode", "operation", "outcome", "phase", "quantile"),
        *("reason", "result", "signal", "source", "state", "status", "task", "tier", "to", "version"),
    }
)
"""Labels whose values only code chooses."""


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry(auto_describe=False)


def samples(registry: CollectorRegistry, name: str) -> dict[tuple[str, ...], float]:
    """Values of the samples called `name`, by their label values in order."""
    text = generate_latest(registry).decode()
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    }


def test_counter_and_gauge_are_exposed(registry: CollectorRegistry) -> None:
    book = Book(registry, {})
    requests = book.counter("gir_x_total", "X.", "model")
    requests.child("a").inc()
    requests.child("a").inc(2)
    open_now = book.gauge("gir_y", "Y.").one
    open_now.set(5)
    open_now.dec()
    assert samples(registry, "gir_x_total") == {("a",): 3.0}
    assert samples(registry, "gir_y") == {(): 4.0}


def test_histogram_buckets_are_cumulative_and_inclusive(registry: CollectorRegistry) -> None:
    family = Book(registry, {}).histogram("gir_h_seconds", "H.", (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        family.one.observe(value)
    assert samples(registry, "gir_h_seconds_bucket") == {("0.1",): 2.0, ("1.0",): 3.0, ("+Inf",): 4.0}
    assert samples(registry, "gir_h_seconds_count") == {(): 4.0}
    assert samples(registry, "gir_h_seconds_sum") == {(): pytest.approx(3.65)}


def test_label_values_beyond_the_cap_are_counted_as_other(registry: CollectorRegistry) -> None:
    family = Book(registry, {"model": 2}).counter("gir_x_total", "X.", "model", "result")
    for model in ("a", "b", "c", "d", "a"):
        family.child(model, "ok").inc()
    assert samples(registry, "gir_x_total") == {("a", "ok"): 2.0, ("b", "ok"): 1.0, (OTHER, "ok"): 2.0}
    for number in range(1_000):
        family.child(f"model-{number}", "ok").inc()
    assert len(family) == 3


def test_removed_children_make_room(registry: CollectorRegistry) -> None:
    family = Book(registry, {"pod": 1}).gauge("gir_x", "X.", "pod", "state")
    family.child("a", "up").set(1)
    family.child("a", "down").set(0)
    family.remove_where("pod", "a")
    family.child("b", "up").set(1)
    assert samples(registry, "gir_x") == {("b", "up"): 1.0}


def test_overlong_label_values_are_cut(registry: CollectorRegistry) -> None:
    family = Book(registry, {}).counter("gir_x_total", "X.", "code")
    family.child("x" * 5_000).inc()
    assert samples(registry, "gir_x_total") == {("x" * 128,): 1.0}


def test_wrong_number_of_labels_is_a_mistake(registry: CollectorRegistry) -> None:
    family = Book(registry, {}).counter("gir_x_total", "X.", "code")
    with pytest.raises(ValueError, match=r"has labels \('code',\)"):
        family.child("a", "b")


@pytest.mark.parametrize(("metrics", "prefix"), [(RouterMetrics, "gir_"), (AgentMetrics, "gir_agent_")])
def test_every_series_is_named_by_the_rules(
    registry: CollectorRegistry, metrics: type[RouterMetrics] | type[AgentMetrics], prefix: str
) -> None:
    families = metrics(registry).families
    names = [family.name for family in families]
    assert len(set(names)) == len(names)
    for family in families:
        assert family.name.startswith(prefix)
        assert family.documentation.endswith(".")
        assert family.name.endswith("_total") is isinstance(family, CounterFamily)
        if isinstance(family, HistogramFamily):
            assert family.name.endswith("_seconds")
            assert list(family.child(*("x" for _ in family.labels)).bounds) == sorted(
                family.child(*("x" for _ in family.labels)).bounds
            )
        if metrics is RouterMetrics:
            assert not family.name.startswith("gir_agent_")


def test_labels_fed_from_outside_are_capped() -> None:
    for metrics in (RouterMetrics(CollectorRegistry()), AgentMetrics(CollectorRegistry())):
        for family in metrics.families:
            assert set(family.labels) <= CLOSED | set(CAPS), family.name
