"""Counters, gauges and histograms for one event loop: no locks, bounded labels, Prometheus exposition.

The client library's own instruments take a lock and walk every bucket on each observation, some ten times the cost of
what a single-threaded process needs; a request touches a dozen series. So the children here are plain objects, and a
`Family` hands their values to the library's registry when somebody scrapes. Scraping happens on the same loop.

Labels whose values come from outside (tenant, model, pod, ...) have a cap each: what would be a new value beyond it is
counted under `other`, so nobody can grow the process by inventing names.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

OTHER = "other"
"""What stands in for label values beyond a cap."""
LABEL_CHARS_MAX = 128


class Counter:
    """Grows only."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount` (>= 0)."""
        self.value += amount


class Gauge:
    """Goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        """Replace the value."""
        self.value = value

    def inc(self, amount: float = 1.0) -> None:
        """Add `amount`."""
        self.value += amount

    def dec(self, amount: float = 1.0) -> None:
        """Subtract `amount`."""
        self.value -= amount


class Histogram:
    """Distribution over fixed upper bounds; observations beyond the last land in +Inf."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation of `value`, in the unit the family's name ends in."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


Child = TypeVar("Child", Counter, Gauge, Histogram)
F = TypeVar("F", "CounterFamily", "GaugeFamily", "HistogramFamily")


class Family(Collector, Generic[Child]):
    """All children of one series name, by their label values.

    `caps` bounds the distinct values of the labels it names; every other label must be fed from a closed set.
    """

    __slots__ = ("_caps", "_children", "_make", "_seen", "documentation", "labels", "name", "one")

    def __init__(
        self,
        registry: CollectorRegistry,
        make: Callable[[], Child],
        name: str,
        documentation: str,
        labels: Sequence[str],
        caps: Mapping[str, int],
    ) -> None:
        self.name = name
        self.documentation = documentation
        self.labels = tuple(labels)
        self._make: Callable[[], Child] = make
        self._caps = tuple(caps.get(label) for label in self.labels)
        self._seen: tuple[set[str], ...] = tuple(set() for _ in self.labels)
        self._children: dict[tuple[str, ...], Child] = {}
        if not self.labels:
            self.one: Child = self.child()
            """The only child of a family without labels."""
        registry.register(self)

    def __len__(self) -> int:
        return len(self._children)

    def child(self, *values: str) -> Child:
        """The child for `values`, one for each label in order. Keep it where the same labels come again and again."""
        found = self._children.get(values)
        return found if found is not None else self._adopt(values)

    def remove(self, *values: str) -> None:
        """Forget the child for `values`, as when a pod is gone; its capped values may be used by others again."""
        self._children.pop(values, None)
        for position, seen in enumerate(self._seen):
            if not any(existing[position] == values[position] for existing in self._children):
                seen.discard(values[position])

    def remove_where(self, label: str, value: str) -> None:
        """Forget every child whose `label` is `value`."""
        position = self.labels.index(label)
        for values in [known for known in self._children if known[position] == value]:
            self.remove(*values)

    def collect(self) -> Iterable[Metric]:
        """What the registry asks for at a scrape."""
        raise NotImplementedError

    def _adopt(self, values: tuple[str, ...]) -> Child:
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has labels {self.labels}, got {values}: pass one value for each")
        bounded = tuple(map(self._bounded, values, self._caps, self._seen))
        found = self._children.get(bounded)
        if found is None:
            found = self._children[bounded] = self._make()
            for value, seen in zip(bounded, self._seen, strict=True):
                seen.add(value)
        return found

    @staticmethod
    def _bounded(value: str, cap: int | None, seen: set[str]) -> str:
        value = value[:LABEL_CHARS_MAX]
        return value if cap is None or value in seen or len(seen) < cap else OTHER


class CounterFamily(Family[Counter]):
    """Counters; the name ends in `_total`."""

    def collect(self) -> Iterable[Metric]:
        """One sample for each child."""
        family = CounterMetricFamily(self.name, self.documentation, labels=self.labels)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class GaugeFamily(Family[Gauge]):
    """Gauges."""

    def collect(self) -> Iterable[Metric]:
        """One sample for each child."""
        family = GaugeMetricFamily(self.name, self.documentation, labels=self.labels)
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class HistogramFamily(Family[Histogram]):
    """Histograms."""

    def collect(self) -> Iterable[Metric]:
        """Cumulative buckets, sum and count for each child."""
        family = HistogramMetricFamily(self.name, self.documentation, labels=self.labels)
        for values, child in self._children.items():
            buckets: list[tuple[str, float]] = []
            below = 0
            for bound, count in zip((*child.bounds, float("inf")), child.counts, strict=True):
                below += count
                buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), below))
            family.add_metric(values, buckets, child.sum)
        yield family


class Book:
    """Declares families on one registry, with the caps all of them share."""

    def __init__(self, registry: CollectorRegistry, caps: Mapping[str, int]) -> None:
        self._registry = registry
        self._caps = caps
        self.families: list[CounterFamily | GaugeFamily | HistogramFamily] = []

    def counter(self, name: str, documentation: str, *labels: str) -> CounterFamily:
        """Declare a counter."""
        return self._keep(CounterFamily(self._registry, Counter, name, documentation, labels, self._caps))

    def gauge(self, name: str, documentation: str, *labels: str) -> GaugeFamily:
        """Declare a gauge."""
        return self._keep(GaugeFamily(self._registry, Gauge, name, documentation, labels, self._caps))

    def histogram(self, name: str, documentation: str, bounds: Sequence[float], *labels: str) -> HistogramFamily:
        """Declare a histogram over ascending `bounds`."""
        family = HistogramFamily(self._registry, lambda: Histogram(bounds), name, documentation, labels, self._caps)
        return self._keep(family)

    def _keep(self, family: F) -> F:
        self.families.append(family)
        return family
