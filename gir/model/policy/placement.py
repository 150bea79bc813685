"""Placement: cost tiers and the weights of the score."""

from typing import Annotated

import msgspec

from gir.model.policy.base import NonNegative, Seconds, Section, Share
from gir.model.request import Criticality

Weight = Annotated[float, msgspec.Meta(ge=0.0, le=10.0)]
Floored = Annotated[float, msgspec.Meta(ge=0.2, le=10.0)]
TokensPerSecond = Annotated[float, msgspec.Meta(gt=0.0)]


class TierPolicy(Section, frozen=True, kw_only=True):
    """One cost tier. Tiers are listed from the one to fill first to the last resort."""

    name: str
    """As clusters report it in Hello: `reserved`, `on_demand`, `spot`, or any declared name."""
    price_per_slot_hour: NonNegative
    """Price of one slot for one hour; only ratios between tiers matter. Required: a tier without price is refused."""
    spill_at: Share = 0.15
    """Spill to the next tier when the predicted free share of this one falls below this. Default 0.15."""
    return_at: Share = 0.25
    """Come back when the free share has risen above this. Default 0.25; must be greater than spill_at."""
    criticality_min: Annotated[
        str,
        msgspec.Meta(pattern="^(sheddable|standard|critical)$", extra={"words": "sheddable, standard or critical"}),
    ] = "sheddable"
    """Lowest criticality that may use this tier: `sheddable` (everybody), `standard` or `critical`."""

    @property
    def lowest(self) -> Criticality:
        """`criticality_min` as the enum."""
        return Criticality[self.criticality_min.upper()]


class ScoreWeights(Section, frozen=True, kw_only=True):
    """Weight of each addend of the expected time to first token. Each has a floor and a cap, so none can rule alone."""

    rtt: Weight = 1.0
    """Round trip between router and cluster."""
    queue: Floored = 1.0
    """Never below 0.2: a placement blind to queues sends everything to the nearest cluster."""
    prefill: Floored = 1.0
    """Prompt tokens the cluster has not cached."""
    error: Weight = 1.0
    """Recent errors of the cluster."""
    affinity: Weight = 1.0
    """Prefix of the prompt the cluster is believed to hold."""
    session: Weight = 1.0
    """Cluster the session is on."""
    adapter: Weight = 1.0
    """Adapter that is not resident."""


class PlacementPolicy(Section, frozen=True, kw_only=True):
    """How clusters are ranked."""

    weights: ScoreWeights = ScoreWeights()
    """Weight of each addend of the score."""
    prefill_tokens_per_s_default: TokensPerSecond = 5_000.0
    """Prefill rate assumed for each pod of a cluster that does not report one, tokens each second."""
    service_rate_per_s_default: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    """Completions each second assumed for a queue in a cluster that does not report its service rate."""
    rtt_default_s: Seconds = 0.1
    """Round trip assumed until a cluster's has been measured."""
    bounded_load: Annotated[float, msgspec.Meta(gt=1.0, le=10.0)] = 1.25
    """Affinity may load a cluster at most this many times its fair share. Default 1.25."""
    affinity_blocks_max: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 200_000
    """Prompt blocks the affinity index remembers on each replica; the least recently used go first. 0 turns it off."""
    affinity_max_s: Annotated[float, msgspec.Meta(gt=0.0, le=60.0)] = 5.0
    """Most that the prefill saved by a cached prefix counts for, in seconds of TTFT."""
    session_bonus_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 0.25
    """Bonus for the cluster a session is already on, in seconds of TTFT."""
    error_penalty_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 2.0
    """Penalty at an error rate of 1, in seconds of TTFT."""
    error_rate_tolerated: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)] = 0.10
    """Error rate without a penalty: what retries hide anyhow (the default is the retry budget's share). Any penalty
    sends all traffic of equal clusters to the other one, so it has to be worth that."""
    adapter_load_s: Annotated[float, msgspec.Meta(ge=0.0, le=600.0)] = 1.0
    """Expected time to load an adapter that is not resident."""
    tie_share: Share = 0.05
    """Candidates whose scores lie within this share of the best one's round trip and queue (and within 5 ms) count as
    equal: two of them are compared by load."""
    hops_max: Annotated[int, msgspec.Meta(ge=1, le=16)] = 2
    """A request that has crossed this many routers is refused: somebody built a loop."""
    return_within_s: Seconds = 60.0
    """After pressure ends, traffic is back in the cheaper tier within this time."""
