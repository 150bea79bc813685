"""What placement and canaries show to Prometheus and the log."""

from gir.place import CanaryEvent, Placer, Rewriter
from gir.telemetry.logs import Logger
from gir.telemetry.metrics import RouterMetrics


class PlacementGauges:
    """`refresh()` before each scrape; `canary(event)` for each line of the audit trail."""

    def __init__(self, metrics: RouterMetrics, log: Logger, placer: Placer, rewriter: Rewriter) -> None:
        self._metrics = metrics
        self._log = log
        self._placer = placer
        self._rewriter = rewriter

    def refresh(self) -> None:
        """Read everything once."""
        metrics, placer = self._metrics, self._placer
        metrics.affinity_blocks.one.set(len(placer.affinity))
        for cluster, trust in placer.trust.items():
            metrics.cache_trust.child(cluster).set(trust.value)
            if trust.divergence is not None:
                metrics.cache_divergence.child(cluster).set(trust.divergence)
        for (model, tier), share in placer.tier_shares().items():
            metrics.tier_share.child(model, tier).set(share)
        for name, trial in self._rewriter.trials.items():
            for target, share in trial.shares().items():
                metrics.canary_weight.child(name, target).set(share)
            for (target, result), count in trial.tally.items():
                counter = metrics.canary.child(name, target, result)
                counter.inc(max(0.0, count - counter.value))

    def canary(self, event: CanaryEvent) -> None:
        """Log what was done to a canary, and count what its guard did."""
        aborted = event.action == "abort"
        if aborted and event.by == "guard":
            self._metrics.canary_aborts.child(event.rule).inc()
        level = self._log.warning if aborted else self._log.info
        level("canary", rule=event.rule, action=event.action, by=event.by, detail=event.detail)
