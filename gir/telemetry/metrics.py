"""Every Prometheus series of both tiers, named in this one file.

`gir_*` is the router's, `gir_agent_*` the agent's. Each process makes one of the two objects on a registry of its own
and passes it to whoever counts; keep children (`family.child(...)`) where the same labels come again and again.
Labels fed from outside are capped (`CAPS`). Units are the last word of a name: seconds, bytes, tokens, ratio (0 to 1).
"""

from collections.abc import Sequence

from prometheus_client import ProcessCollector
from prometheus_client.registry import CollectorRegistry

from gir.telemetry.instruments import Book

CAPS = {
    "model": 200,
    "tenant": 200,
    "cluster": 500,
    "pod": 2_000,
    "limit": 200,
    "rule": 100,
    "target": 200,
    "router": 64,
}
"""Distinct values a label may take before the rest is counted under `other`."""

LATENCY_S: Sequence[float] = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0),
)
TTFT_S: Sequence[float] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
"""The GenAI conventions' buckets for time to first token, and beyond them where queues matter."""
PER_TOKEN_S: Sequence[float] = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
DECISION_S: Sequence[float] = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1)


class RouterMetrics:
    """Series of one router process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._book = Book(registry, CAPS)
        self.families = self._book.families
        ProcessCollector(registry=registry)
        self._declare_requests()
        self._declare_attempts()
        self._declare_clusters()
        self._declare_beats()
        self._declare_admission()
        self._declare_process()

    def _declare_requests(self) -> None:
        counter, gauge, histogram = self._book.counter, self._book.gauge, self._book.histogram
        self.requests = counter(
            "gir_requests_total",
            "Requests by their one terminal outcome.",
            *("model", "tenant", "criticality", "outcome"),
        )
        self.errors = counter("gir_errors_total", "Errors the router answered with by itself, by OpenAI code.", "code")
        self.request_s = histogram(
            "gir_request_duration_seconds", "From arrival to the last byte sent.", LATENCY_S, "model", "outcome"
        )
        self.ttft_s = histogram(
            "gir_time_to_first_token_seconds",
            "From arrival to the first token sent on.",
            TTFT_S,
            "model",
            "criticality",
        )
        self.per_token_s = histogram(
            "gir_time_per_output_token_seconds", "Mean gap between output tokens of a stream.", PER_TOKEN_S, "model"
        )
        self.tokens = counter(
            "gir_tokens_total",
            "Tokens settled; kind is prompt, completion, cached or reasoning.",
            *("model", "tenant", "kind"),
        )
        self.usage_estimated = counter(
            "gir_usage_estimated_total", "Requests settled by an estimate: no usage came.", "model"
        )
        self.in_flight = gauge("gir_requests_in_flight", "Requests admitted and not yet ended.")
        self.connections = gauge("gir_client_connections", "Open client connections.")
        self.refused = counter(
            "gir_http_refused_total", "Requests refused by the HTTP server before they were read, by reason.", "reason"
        )
        self.jwks_fetches = counter("gir_jwks_fetches_total", "Fetches of token issuers' keys.", "result")
        self.decisions = counter(
            "gir_placements_total", "Dispatches by cluster and the reason it came first.", "cluster", "reason"
        )
        self.tier_share = gauge(
            "gir_tier_share_ratio", "Share of a model's traffic each cost tier takes now.", "model", "tier"
        )
        self.demand = gauge(
            "gir_demand_slots",
            "Slots a model could use: running and waiting in the fleet, and waiting here. For autoscalers.",
            "model",
        )
        self.cache_trust = gauge(
            "gir_cache_trust_ratio",
            "Part of predicted cached tokens that placement believes, 1 until known.",
            "cluster",
        )
        self.cache_divergence = gauge(
            "gir_cache_divergence_ratio", "Predicted cached tokens that engines did not confirm, as a share.", "cluster"
        )
        self.affinity_blocks = gauge("gir_affinity_blocks", "Prompt blocks in the affinity index.")
        self.canary = counter("gir_canary_requests_total", "Requests a canary rule drew.", "rule", "target", "result")
        self.canary_weight = gauge("gir_canary_weight_ratio", "Weight of a canary target.", "rule", "target")
        self.canary_aborts = counter("gir_canary_aborts_total", "Canaries stopped by their guard.", "rule")

    def _declare_attempts(self) -> None:
        counter, gauge, histogram = self._book.counter, self._book.gauge, self._book.histogram
        self.attempts = counter(
            "gir_attempts_total",
            "Attempts by cluster, result and how far they got.",
            *("cluster", "result", "phase"),
        )
        self.attempt_ttft_s = histogram(
            "gir_attempt_time_to_first_token_seconds", "From dispatch to a cluster's first token.", TTFT_S, "cluster"
        )
        self.attempt_s = histogram(
            "gir_attempt_duration_seconds", "From dispatch to the end of the attempt.", LATENCY_S, "cluster"
        )
        self.failovers = counter(
            "gir_failovers_total", "Requests moved off a cluster before their first token.", "cluster", "reason"
        )
        self.truncated = counter(
            "gir_streams_truncated_total", "Streams that broke after their first token.", "cluster"
        )
        self.resumed = counter("gir_streams_resumed_total", "Broken streams continued on another cluster.", "result")
        self.wasted = counter(
            "gir_attempts_wasted_total", "Attempts given up after dispatch: the engine may have worked.", "cluster"
        )
        self.upstream_connections = gauge(
            "gir_upstream_connections", "Connections to a cluster; state is active or idle.", "cluster", "state"
        )

    def _declare_clusters(self) -> None:
        counter, gauge = self._book.counter, self._book.gauge
        self.cluster_status = gauge(
            "gir_cluster_status", "1 for the status a cluster has, else 0.", "cluster", "status"
        )
        self.cluster_weight = gauge("gir_cluster_weight_ratio", "Share of its normal traffic it may get.", "cluster")
        self.cluster_rtt_s = gauge("gir_cluster_rtt_seconds", "Round trip on the probe path.", "cluster")
        self.cluster_beat_age_s = gauge("gir_cluster_beat_age_seconds", "Age of the last beat taken.", "cluster")
        self.cluster_events = counter(
            "gir_cluster_events_total",
            "Changes of cluster health and intent, by kind and new value.",
            "cluster",
            "kind",
            "to",
        )
        self.probes = counter("gir_probes_total", "Probes of clusters' data paths.", "cluster", "result")
        self.fail_open = gauge("gir_fail_open", "1 while the router suspects itself and excludes nobody for silence.")
        self.pool_pods = gauge(
            "gir_pool_pods", "Pods of a pool; state is ready or warming.", "cluster", "model", "state"
        )
        self.pool_slots = gauge(
            "gir_pool_slots", "Slots of a pool; state is total or free.", "cluster", "model", "state"
        )
        self.pool_requests = gauge(
            "gir_pool_requests", "Requests in a pool; state is running or waiting.", "cluster", "model", "state"
        )
        self.pool_kv = gauge("gir_pool_kv_used_ratio", "Used share of a pool's KV cache.", "cluster", "model")
        self.pool_ttft_s = gauge(
            "gir_pool_ttft_seconds", "Time to first token a pool reports.", "cluster", "model", "quantile"
        )
        self.pool_error_rate = gauge("gir_pool_error_ratio", "Error rate a pool reports.", "cluster", "model")
        self.pool_adapters = gauge("gir_pool_adapters", "Adapters resident in a pool.", "cluster", "model")

    def _declare_beats(self) -> None:
        counter, gauge = self._book.counter, self._book.gauge
        self.beat_streams = gauge("gir_beat_streams", "Open beat streams.", "cluster")
        self.beats = counter(
            "gir_beats_total", "Beats by what became of them: taken, ignored or refused.", "cluster", "result"
        )
        self.beats_refused = counter("gir_beats_refused_total", "Beats refused, by reason.", "cluster", "reason")
        self.hellos_refused = counter(
            "gir_hellos_refused_total", "Streams refused at their hello, by reason.", "reason"
        )
        self.beats_flagged = gauge(
            "gir_beats_flagged", "1 while an agent sends so many bad beats that somebody should look.", "cluster"
        )
        self.rivals = counter("gir_cluster_rivals_total", "Times two agents claimed one cluster id at once.", "cluster")

    def _declare_admission(self) -> None:
        counter, gauge, histogram = self._book.counter, self._book.gauge, self._book.histogram
        self.limited = counter("gir_limit_rejections_total", "Requests a limit refused.", "limit", "tenant")
        self.orders_version = gauge(
            "gir_orders_version", "Version of the operators' orders in force; routers that share a store show the same."
        )
        self.orders_degraded = gauge(
            "gir_orders_degraded", "1 while the store of operators' orders cannot be used: the last ones stay."
        )
        self.limit_degraded = gauge("gir_limits_degraded", "1 while limits run on local shares: the store is gone.")
        self.store_s = histogram(
            "gir_store_call_duration_seconds", "Calls of the shared store.", DECISION_S, "operation"
        )
        self.store_errors = counter("gir_store_errors_total", "Calls of the shared store that failed.", "operation")
        self.queued = gauge("gir_queue_requests", "Requests waiting for room in a cluster.", "criticality")
        self.queued_bytes = gauge("gir_queue_bytes", "Bodies of the waiting requests.")
        self.queue_wait_s = histogram("gir_queue_wait_seconds", "Time waited for room.", LATENCY_S, "criticality")
        self.shed = counter("gir_shed_total", "Requests shed for want of room.", "criticality", "reason")

    def _declare_process(self) -> None:
        counter, gauge = self._book.counter, self._book.gauge
        self.build = gauge("gir_build_info", "Always 1; the labels say what runs.", "version")
        self.ready = gauge("gir_ready", "1 while the process wants traffic.")
        self.policy_version = gauge("gir_policy_version", "Version of the policy in force.")
        self.policy_age_s = gauge("gir_policy_age_seconds", "Time since the policy in force was taken.")
        self.policy_reloads = counter("gir_policy_reloads_total", "Policy changes seen: taken or rejected.", "result")
        self.policy_rejected = gauge(
            "gir_policy_rejected", "1 while the configuration source holds a version that was refused."
        )
        self.restart_needed = gauge(
            "gir_config_restart_fields", "Fields changed in the file that wait for a restart; 0: none."
        )
        self.loop_stalls = counter("gir_loop_stalls_total", "Times the event loop stood still.")
        self.loop_lag_s = gauge("gir_loop_lag_seconds", "Latest delay of a timer of the event loop.")
        self.logs_dropped = counter("gir_log_lines_dropped_total", "Log lines dropped because the sink was slow.")
        self.spans_dropped = counter("gir_spans_dropped_total", "Spans not exported.")
        self.task_failures = counter("gir_task_failures_total", "Background tasks that ended with an error.", "task")


class AgentMetrics:
    """Series of one agent process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._book = Book(registry, CAPS)
        self.families = self._book.families
        ProcessCollector(registry=registry)
        self._declare_requests()
        self._declare_pods()
        self._declare_process()

    def _declare_requests(self) -> None:
        counter, gauge, histogram = self._book.counter, self._book.gauge, self._book.histogram
        self.requests = counter(
            "gir_agent_requests_total", "Requests by their one terminal outcome.", "model", "outcome"
        )
        self.errors = counter("gir_agent_errors_total", "Errors the agent answered with by itself.", "code")
        self.request_s = histogram(
            "gir_agent_request_duration_seconds", "From arrival to the last byte sent.", LATENCY_S, "model"
        )
        self.ttft_s = histogram(
            "gir_agent_time_to_first_token_seconds", "From arrival to the first token sent on.", TTFT_S, "model"
        )
        self.per_token_s = histogram(
            "gir_agent_time_per_output_token_seconds", "Mean gap between output tokens.", PER_TOKEN_S, "model"
        )
        self.tokens = counter("gir_agent_tokens_total", "Tokens pods reported.", "model", "kind")
        self.in_flight = gauge("gir_agent_requests_in_flight", "Requests taken and not yet ended.")
        self.connections = gauge("gir_agent_client_connections", "Open client connections.")
        self.refused = counter(
            "gir_agent_http_refused_total", "Requests refused by the HTTP server before they were read.", "reason"
        )
        self.picks = counter("gir_agent_picks_total", "Picks by pod and what decided.", "pod", "reason")
        self.pick_s = histogram("gir_agent_pick_duration_seconds", "Time one pick took.", DECISION_S)
        self.picker_mode = gauge(
            "gir_agent_picker_mode", "1 for the mode in use: full, in_flight or round_robin.", "mode"
        )
        self.pod_attempts = counter("gir_agent_pod_attempts_total", "Attempts by pod and result.", "pod", "result")
        self.gate_waiting = gauge("gir_agent_gate_waiting", "Requests waiting at the gate.", "model")
        self.gate_wait_s = histogram("gir_agent_gate_wait_seconds", "Time waited at the gate.", LATENCY_S, "model")
        self.gate_refused = counter("gir_agent_gate_refused_total", "Requests the gate refused.", "model", "reason")
        self.prefix_blocks = gauge("gir_agent_prefix_index_blocks", "Blocks the prefix index remembers.")
        self.prefix_bytes = counter(
            "gir_agent_prefix_matched_bytes_total", "Prompt bytes a picked pod was believed to hold.", "model"
        )
        self.prompt_bytes = counter("gir_agent_prompt_bytes_total", "Prompt bytes of picked requests.", "model")

    def _declare_pods(self) -> None:
        counter, gauge, histogram = self._book.counter, self._book.gauge, self._book.histogram
        self.pods = gauge("gir_agent_pods", "Pods by state: ready, warming, stale, draining or down.", "model", "state")
        self.pod_up = gauge("gir_agent_pod_up", "1 while requests may go to the pod.", "pod", "model")
        self.pod_requests = gauge(
            "gir_agent_pod_requests", "Requests in a pod; state is running, waiting or in_flight.", "pod", "state"
        )
        self.pod_kv = gauge("gir_agent_pod_kv_used_ratio", "Used share of a pod's KV cache.", "pod")
        self.pod_adapters = gauge("gir_agent_pod_adapters", "Adapters resident in a pod.", "pod")
        self.pod_service_rate = gauge("gir_agent_pod_service_rate", "Requests a pod completes each second.", "pod")
        self.pod_scrape_age_s = gauge("gir_agent_pod_scrape_age_seconds", "Age of a pod's last good scrape.", "pod")
        self.scrapes = counter("gir_agent_scrapes_total", "Scrapes by pod and result.", "pod", "result")
        self.scrape_s = histogram("gir_agent_scrape_duration_seconds", "Time one scrape took.", LATENCY_S)
        self.signal_missing = gauge(
            "gir_agent_signal_missing", "1 while a signal the picker wants is not reported by a pod.", "pod", "signal"
        )
        self.discovery_empty = gauge(
            "gir_agent_discovery_empty", "1 while the selector or file matches no pod.", "source"
        )

    def _declare_process(self) -> None:
        counter, gauge, histogram = self._book.counter, self._book.gauge, self._book.histogram
        self.build = gauge("gir_agent_build_info", "Always 1; the labels say what runs.", "version")
        self.ready = gauge("gir_agent_ready", "1 while the process wants traffic.")
        self.pool_slots = gauge("gir_agent_pool_slots", "Slots of a pool; state is total or free.", "model", "state")
        self.beats = counter(
            "gir_agent_beats_total", "Beats by router: acknowledged, refused or lost.", "router", "result"
        )
        self.beat_streams = gauge("gir_agent_beat_stream_up", "1 while a router acknowledges beats.", "router")
        self.drain_asked = gauge("gir_agent_drain_asked", "1 while a router sends nothing new, on purpose.", "router")
        self.beat_connects = counter("gir_agent_beat_connects_total", "Streams opened to a router.", "router", "result")
        self.beat_ack_s = histogram("gir_agent_beat_ack_seconds", "From a beat to its acknowledgement.", LATENCY_S)
        self.loop_stalls = counter("gir_agent_loop_stalls_total", "Times the event loop stood still.")
        self.logs_dropped = counter("gir_agent_log_lines_dropped_total", "Log lines dropped because the sink was slow.")
        self.spans_dropped = counter("gir_agent_spans_dropped_total", "Spans not exported.")
        self.task_failures = counter(
            "gir_agent_task_failures_total", "Background tasks that ended with an error.", "task"
        )
