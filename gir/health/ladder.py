"""The timing ladder: how long a lost cluster can go unnoticed, by signal, worked out from the policy.

The promise `failover_bound_s` is a promise to users, so settings that cannot keep it are refused with the sums.
"""

from gir.model.policy import HealthPolicy


def rungs(policy: HealthPolicy) -> tuple[tuple[str, float, str], ...]:
    """(signal, worst case in seconds, sum as text) for each signal that needs only time, fastest first.

    The breaker is missing because it needs traffic; it only ever makes detection faster. Silence is measured from the
    last beat, so the interval between beats does not add to it; the sweep that reads the clock does. A probe can fail
    right after it was answered, and each later one is answered `probe_timeout_s` late.
    """
    silent_s = policy.dead_after_s + policy.sweep_interval_s
    silent = ("beats", silent_s, f"dead_after_s {policy.dead_after_s:g} + sweep_interval_s {policy.sweep_interval_s:g}")
    if not policy.probe:
        return (silent,)
    frozen_s = policy.probe_misses * policy.probe_interval_s + policy.probe_timeout_s
    text = (
        f"probe_misses {policy.probe_misses} x probe_interval_s {policy.probe_interval_s:g}"
        f" + probe_timeout_s {policy.probe_timeout_s:g}"
    )
    return tuple(sorted((("probes", frozen_s, text), silent), key=lambda rung: rung[1]))


def worst_case(policy: HealthPolicy) -> tuple[float, str]:
    """Seconds from a fault to the last placement on the lost cluster by the slowest signal, and the arithmetic."""
    signal, worst_s, text = max(rungs(policy), key=lambda rung: rung[1])
    return worst_s, f"{signal}: {text} = {worst_s:g}s"


def check_ladder(policy: HealthPolicy) -> None:
    """Refuse a policy whose ladder cannot keep its promise or contradicts itself.

    Raises ValueError naming the field, its value and the fix.
    """
    for signal, worst_s, text in rungs(policy):
        if worst_s > policy.failover_bound_s:
            raise ValueError(
                f"health: a lost cluster could go unnoticed for {worst_s:g}s by its {signal} ({text} = {worst_s:g}s),"
                f" which breaks failover_bound_s {policy.failover_bound_s:g}s; lower the terms or raise the bound"
            )
    if policy.suspect_after_s < 2 * policy.beat_interval_s:
        raise ValueError(
            f"health.suspect_after_s is {policy.suspect_after_s:g}: one late beat would suspect a cluster; use at least"
            f" 2 x beat_interval_s = {2 * policy.beat_interval_s:g}"
        )
    if policy.dead_after_s <= policy.suspect_after_s:
        raise ValueError(
            f"health.dead_after_s is {policy.dead_after_s:g}: must be greater than suspect_after_s"
            f" {policy.suspect_after_s:g}"
        )
    if policy.probe and policy.probe_timeout_s > policy.probe_interval_s:
        raise ValueError(
            f"health.probe_timeout_s is {policy.probe_timeout_s:g}: must not exceed probe_interval_s"
            f" {policy.probe_interval_s:g}, or probes of one cluster overlap"
        )
    if policy.holddown_s > policy.holddown_max_s or policy.ejection_s > policy.ejection_max_s:
        raise ValueError(
            f"health: holddown_s {policy.holddown_s:g} must not exceed holddown_max_s {policy.holddown_max_s:g}, nor"
            f" ejection_s {policy.ejection_s:g} exceed ejection_max_s {policy.ejection_max_s:g}"
        )
