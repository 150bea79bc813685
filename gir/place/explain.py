"""A decision as an operator reads it: plain lines, nothing left out."""

from gir.model.decision import Candidate, Placement, TierView

_REASONS = {
    "affinity": "its cache is predicted to hold the beginning of the prompt",
    "cheapest": "best of the cheapest tier with headroom",
    "fail_open": "every health signal went stale at once, so health excludes nobody",
    "fastest": "lowest expected time to first token",
    "last_resort": "suspect, and nobody else can take it",
    "longest_context": "the prompt seems to fit nowhere; the longest context is left to judge",
    "objective": "the cheaper tier would miss the model's objective for the time to first token",
    "only": "the only candidate",
    "pinned": "the caller insists on it",
    "saturated": "no tier has headroom, so the expected time to first token decides",
    "session": "the session was last served there",
    "spill": "the cheaper tier's headroom is short, and the draw fell to the next one",
}


def render(placement: Placement) -> str:
    """The whole decision as text, ending in a newline."""
    lines = [_headline(placement), _versions(placement)]
    if placement.canary:
        lines.append(f"canary    {placement.canary}")
    if placement.tiers:
        lines += ["", "tiers     first to fill first"]
        lines += [_tier(tier, placement.tier_drawn == tier.tier) for tier in placement.tiers]
        lines.append(f"  draw {placement.draw:.4f} -> {placement.tier_drawn}")
    if placement.ranked:
        lines += ["", "ranked    expected seconds to first token, lower is better"]
        for place, candidate in enumerate(placement.ranked, start=1):
            lines += _candidate(place, candidate)
    if placement.removed:
        lines += ["", "removed"]
        width = max(len(each.cluster) for each in placement.removed)
        lines += [f"  {each.cluster:<{width}}  {each.filter}: {each.detail}" for each in placement.removed]
    return "\n".join(lines) + "\n"


def _headline(placement: Placement) -> str:
    if placement.ranked:
        first = placement.ranked[0]
        told = _REASONS.get(placement.reason, "")
        return f"{placement.model} -> {first.cluster} ({placement.reason}{': ' + told if told else ''})"
    if not placement.model_known:
        return f"{placement.model} -> nobody: no cluster has ever reported this model (404)"
    status = 403 if placement.forbidden else 503
    retry = f"; earliest recovery in {placement.retry_after_s:.1f} s" if placement.retry_after_s is not None else ""
    return f"{placement.model} -> nobody ({status}): {placement.reason}{retry}"


def _versions(placement: Placement) -> str:
    return f"          view {placement.view_version}, policy {placement.policy_version}, draw {placement.draw:.4f}"


def _tier(tier: TierView, drawn: bool) -> str:
    return (
        f"  {'>' if drawn else ' '} {tier.tier:<12} {tier.share:>4.0%} of the traffic; "
        f"{tier.slots_free:.0f} of {tier.slots_total:.0f} slots predicted free"
        f"{f', {tier.reserve_slots:.1f} kept for critical' if tier.reserve_slots else ''}"
        f"; headroom {tier.headroom:.1%}{f' after a trend of {tier.trend:.1%}' if tier.trend else ''}"
        f" (spills below {tier.spill_at:.0%}, returns above {tier.return_at:.0%})"
        f"{f'; still spilling {tier.spilled:.0%}' if tier.spilled > 0 else ''}"
        f"; price {tier.price_per_slot_hour:g}"
    )


def _candidate(place: int, candidate: Candidate) -> list[str]:
    flags = "".join(
        f", {flag}"
        for flag, on in (("on probation", candidate.probation), ("held back by its weight", candidate.held_back))
        if on
    )
    about = f"{candidate.region}, {candidate.tier}, {candidate.room:.0f} slots free{flags}"
    lines = [f"  {place}. {candidate.cluster}  {candidate.score_s:.4f}  ({about})"]
    lines += [f"       {term.seconds:+9.4f}  {term.name:<9} {term.detail}" for term in candidate.terms]
    if candidate.unknown:
        lines.append(f"       not reported: {', '.join(candidate.unknown)}")
    return lines
