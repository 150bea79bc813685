"""From what a credential grants, and what policy says of its tenant, to the `Principal` every stage works with.

A principal is the intersection of both: neither a generous token nor a generous policy widens the other.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from gir.auth.settings import ApiKey, ClaimMap, JwtIssuer
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, RegionId, TenantId
from gir.model.policy import TenantPolicy
from gir.model.request import Criticality, Principal

ANONYMOUS = Principal(tenant=TenantId("anonymous"), key_id="anonymous")
NAME_CHARS_MAX = 256
Name = TypeVar("Name")


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a credential itself says: who, and at most what. None means it does not restrict."""

    tenant: TenantId
    key_id: str
    models: frozenset[ModelId] | None = None
    regions: frozenset[RegionId] | None = None
    criticality_max: Criticality = Criticality.CRITICAL
    criticality_default: Criticality | None = None
    trusted: bool = False


def principal_of(grant: Grant, policy: TenantPolicy | None) -> Principal:
    """Meet of `grant` and the tenant's `policy` (None: policy does not know the tenant and restricts nothing)."""
    policy = policy or TenantPolicy(id=grant.tenant)
    ceiling = min(grant.criticality_max, Criticality[policy.criticality_max.upper()])
    default = Criticality[policy.criticality_default.upper()]
    if grant.criticality_default is not None:
        default = grant.criticality_default
    return Principal(
        tenant=grant.tenant,
        key_id=grant.key_id,
        models_allowed=_meet(grant.models, policy.models),
        regions_allowed=_meet(grant.regions, None if policy.regions is None else map(RegionId, policy.regions)),
        criticality_max=ceiling,
        criticality_default=min(default, ceiling),
        trusted=grant.trusted or policy.trusted,
    )


def _meet(ours: frozenset[Name] | None, theirs: Iterable[Name] | None) -> frozenset[Name] | None:
    if theirs is None:
        return ours
    return frozenset(theirs) if ours is None else ours & frozenset(theirs)


def grant_of_key(key: ApiKey) -> Grant:
    """What an API key grants."""
    return Grant(
        tenant=key.tenant,
        key_id=key.id,
        models=None if key.models is None else frozenset(key.models),
        regions=None if key.regions is None else frozenset(map(RegionId, key.regions)),
        criticality_max=Criticality[key.criticality_max.upper()],
        criticality_default=None if key.criticality_default is None else Criticality[key.criticality_default.upper()],
        trusted=key.trusted,
    )


def grant_of_claims(claims: Mapping[str, Any], issuer: JwtIssuer) -> Grant:
    """What verified `claims` grant; RequestError FORBIDDEN when they name no tenant this issuer may speak for."""
    names = issuer.claims
    tenant = TenantId(_text(claims, names.tenant, "tenant"))
    if issuer.tenants is not None and tenant not in issuer.tenants:
        raise _forbidden(
            "the token's issuer may not speak for its tenant; ask the operator to list it in auth.jwt.tenants"
        )
    return Grant(
        tenant=tenant,
        key_id=_text(claims, names.subject, "subject"),
        models=_restriction(claims, names.models, ModelId),
        regions=_restriction(claims, names.regions, RegionId),
        criticality_max=_criticality(claims, names),
    )


def claim_at(claims: Mapping[str, Any], path: str) -> Any:
    """Value at the dotted `path`, or None. A claim whose own name holds dots (a URL) is found first."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for part in path.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return None
        value = value[part]
    return value


def _text(claims: Mapping[str, Any], path: str, what: str) -> str:
    value = claim_at(claims, path)
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS_MAX or not value.isprintable():
        raise _forbidden(f"the token has no usable {what} in claim `{path}`; it must be a short text")
    return value


def _names(claims: Mapping[str, Any], path: str) -> list[str]:
    value = claim_at(claims, path)
    if isinstance(value, str):
        return value.split()
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        return value
    raise _forbidden(f"the token's claim `{path}` is missing or neither a text nor a list of texts")


def _restriction(claims: Mapping[str, Any], path: str | None, kind: Callable[[str], Name]) -> frozenset[Name] | None:
    """A mapped claim must be there: a token that lost it must not become an unrestricted one."""
    return None if path is None else frozenset(kind(name) for name in _names(claims, path))


def _criticality(claims: Mapping[str, Any], names: ClaimMap) -> Criticality:
    if names.criticality_max is None:
        return Criticality.CRITICAL
    value = claim_at(claims, names.criticality_max)
    if not isinstance(value, str) or value.upper() not in Criticality.__members__:
        raise _forbidden(f"the token's claim `{names.criticality_max}` must be one of critical, standard, sheddable")
    return Criticality[value.upper()]


def _forbidden(message: str) -> RequestError:
    return RequestError(ErrorKind.FORBIDDEN, message)
