"""Placement and canaries are visible to whoever scrapes and reads the log."""

from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from gir.model.policy import CanaryRule, CanaryTarget, RuleMatch
from gir.model.request import Usage
from gir.place import CanaryEvent, Placer, Rewriter
from gir.placement_gauges import PlacementGauges
from gir.telemetry.metrics import RouterMetrics
from tests.support.placing import NOW_S, cluster, plan, policy, pool, principal, request, view


class Log:
    def __init__(self):
        self.lines = []

    def info(self, event, **fields):
        self.lines.append(("info", event, fields["action"]))

    def warning(self, event, **fields):
        self.lines.append(("warning", event, fields["action"]))


def scraped(gauges: PlacementGauges, registry: CollectorRegistry) -> str:
    gauges.refresh()
    return generate_latest(registry).decode()


def test_spill_trust_and_canaries_are_exported():
    registry = CollectorRegistry()
    placer, rewriter = Placer(), Rewriter()
    gauges = PlacementGauges(RouterMetrics(registry), Log(), placer, rewriter)
    fleet = view(
        cluster("cheap", load={"slots_free": 0}, pools=[pool(slots_free=0), pool(model="next")]),
        cluster("dear", tier="on_demand"),
    )
    asked = request(prefix_hashes=(1, 2, 3, 4))
    plan(placer, fleet, asked)
    placer.dispatched(asked, "dear", NOW_S)
    again = placer.dispatched(asked, "dear", NOW_S)
    placer.finished(again, now_s=NOW_S, usage=Usage(prompt_tokens=500, cached_tokens=125), ok=True)
    targets = (CanaryTarget(model="llama", weight=75), CanaryTarget(model="next", weight=25))
    rule = CanaryRule(name="r", matches=(RuleMatch(model="llama"),), targets=targets)
    for number in range(40):
        got = rewriter.rewrite("llama", [], principal(), f"s{number}", policy(rewrites=(rule,)), fleet, NOW_S)
        rewriter.observe(got, True, 0.1, NOW_S)
    text = scraped(gauges, registry)
    assert 'gir_tier_share_ratio{model="llama",tier="on_demand"} 1.0' in text
    assert 'gir_cache_divergence_ratio{cluster="dear"} 0.75' in text
    assert 'gir_canary_weight_ratio{rule="r",target="next"} 0.25' in text
    counted = [line for line in text.splitlines() if line.startswith("gir_canary_requests_total{")]
    assert sum(float(line.rpartition(" ")[2]) for line in counted) == 40.0
    assert scraped(gauges, registry).count("gir_canary_requests_total{") == len(counted), "a second scrape adds nothing"


def test_what_is_done_to_a_canary_is_logged_and_aborts_of_the_guard_are_counted():
    registry, log = CollectorRegistry(), Log()
    gauges = PlacementGauges(RouterMetrics(registry), log, Placer(), Rewriter())
    gauges.canary(CanaryEvent(NOW_S, "r", "start", "ann"))
    gauges.canary(CanaryEvent(NOW_S, "r", "abort", "guard", "error rate"))
    gauges.canary(CanaryEvent(NOW_S, "r", "abort", "ann"))
    assert log.lines == [("info", "canary", "start"), ("warning", "canary", "abort"), ("warning", "canary", "abort")]
    assert 'gir_canary_aborts_total{rule="r"} 1.0' in scraped(gauges, registry)
