"""The timing ladder: how long a lost cluster can go unnoticed, by signal, worked out from the policy.

The promise `failover_bound_s` is a promise to users, so settings that cannot keep it are refused with the sums.
"""

from collections.abc import Iterator

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

    Raises ValueError with a line for each fault, naming the field, its value and the fix.
    """
    faults = list(ladder_faults(policy))
    if faults:
        raise ValueError("\n".join(faults))


def ladder_faults(policy: HealthPolicy) -> Iterator[str]:
    """Everything `check_ladder` would refuse; each begins with the field, as in `health.dead_after_s is 60`."""
    for signal, worst_s, text in rungs(policy):
        if worst_s > policy.failover_bound_s:
            field = "dead_after_s" if signal == "beats" else "probe_interval_s"
            yield (
                f"health.{field} is {getattr(policy, field):g}: a lost cluster could go unnoticed for {worst_s:g}s by "
                f"its {signal} ({text} = {worst_s:g}s), which breaks failover_bound_s {policy.failover_bound_s:g}s; "
                "lower the terms or raise the bound"
            )
    if policy.suspect_after_s < 2 * policy.beat_interval_s:
        yield (
            f"health.suspect_after_s is {policy.suspect_after_s:g}: one late beat would suspect a cluster; use at least"
            f" 2 x beat_interval_s = {2 * policy.beat_interval_s:g}"
        )
    if policy.dead_after_s <= policy.suspect_after_s:
        yield (
            f"health.dead_after_s is {policy.dead_after_s:g}: must be greater than suspect_after_s"
            f" {policy.suspect_after_s:g}; raise it"
        )
    if policy.probe and policy.probe_timeout_s > policy.probe_interval_s:
        yield (
            f"health.probe_timeout_s is {policy.probe_timeout_s:g}: must not exceed probe_interval_s"
            f" {policy.probe_interval_s:g}, or probes of one cluster overlap; lower it"
        )
    for first, last in (("holddown_s", "holddown_max_s"), ("ejection_s", "ejection_max_s")):
        if getattr(policy, first) > getattr(policy, last):
            yield (
                f"health.{first} is {getattr(policy, first):g}: must not exceed {last} {getattr(policy, last):g}; "
                "lower it or raise the other"
            )
