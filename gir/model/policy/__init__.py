"""What the operator wants, as one frozen value: parsed, validated as a whole, swapped by one reference.

Every section is also the schema of its part of the router's YAML file: unknown keys are refused, bounds are checked,
and each field's docstring gives meaning, unit and default.
"""

from gir.model.policy.canary import CanaryGuard, CanaryRule, CanaryTarget, HeaderMatch, RuleMatch
from gir.model.policy.forward import ForwardPolicy
from gir.model.policy.health import HealthPolicy
from gir.model.policy.limits import FlowPolicy, LimitRule
from gir.model.policy.placement import PlacementPolicy, ScoreWeights, TierPolicy
from gir.model.policy.snapshot import ClusterPolicy, ModelPolicy, PolicySnapshot, TenantPolicy

__all__ = [
    "CanaryGuard",
    "CanaryRule",
    "CanaryTarget",
    "ClusterPolicy",
    "FlowPolicy",
    "ForwardPolicy",
    "HeaderMatch",
    "HealthPolicy",
    "LimitRule",
    "ModelPolicy",
    "PlacementPolicy",
    "PolicySnapshot",
    "RuleMatch",
    "ScoreWeights",
    "TenantPolicy",
    "TierPolicy",
]
