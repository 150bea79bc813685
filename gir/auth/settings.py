"""Who may ask, as the configuration file says it. Secrets never stand here: keys and admin tokens only as SHA-256."""

from datetime import datetime
from typing import Annotated, Literal

import msgspec

from gir.model.ids import ModelId, TenantId
from gir.model.policy.base import Count, NonNegative, Seconds, Section

Sha256Hex = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", extra={"words": "a SHA-256: 64 hexadecimal digits"})]
Identifier = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
Stamp = Annotated[datetime, msgspec.Meta(tz=True)]
CriticalityName = Literal["critical", "standard", "sheddable"]
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Asymmetric signatures only. Neither `none` nor HMAC can be configured, so no token can talk us into them."""
RoleName = Literal["viewer", "operator", "admin"]


class ApiKey(Section, frozen=True, kw_only=True):
    """One API key. The key itself is random and long, so a plain SHA-256 of it is enough (nothing to guess)."""

    id: Identifier
    """Public name of the key: it appears in logs, metrics and the ledger."""
    key_sha256: Sha256Hex
    tenant: TenantId
    models: tuple[ModelId, ...] | None = None
    """Models it may ask for; None means any its tenant may."""
    regions: tuple[str, ...] | None = None
    criticality_max: CriticalityName = "critical"
    criticality_default: CriticalityName | None = None
    """Class of a request that claims none; None takes the tenant's."""
    trusted: bool = False
    """May set `x-gir-*` control headers."""
    created_at: Stamp | None = None
    expires_at: Stamp | None = None
    revoked_at: Stamp | None = None
    """Set by `gir keys revoke`; the record stays, so that old log lines keep their meaning."""


class ClaimMap(Section, frozen=True, kw_only=True):
    """Which claim says what. A dot descends into an object: `realm.tenant`. None leaves the property unrestricted."""

    tenant: str = "tenant"
    subject: str = "sub"
    """Names the credential in logs and ledgers (`key_id`)."""
    models: str | None = None
    """List of names, or one string of names separated by spaces."""
    regions: str | None = None
    criticality_max: str | None = None


class JwtIssuer(Section, frozen=True, kw_only=True):
    """One issuer whose tokens are accepted."""

    issuer: Identifier
    """Exact value of `iss`."""
    audiences: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    """A token must name one of these in `aud`."""
    jwks_url: str | None = None
    """Where its keys are published; https, or http on a loopback address."""
    jwks_file: str | None = None
    """Keys from a file instead, read again every `refresh_s`."""
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)] = ("RS256", "ES256", "EdDSA")
    claims: ClaimMap = ClaimMap()
    tenants: tuple[TenantId, ...] | None = None
    """Tenants this issuer may speak for; None means any. Set it when more than one issuer is trusted."""
    leeway_s: NonNegative = 60.0
    """Clock difference forgiven in `exp` and `nbf`."""
    refresh_s: Seconds = 240.0
    """Time between two fetches of the keys: a withdrawn key is refused within it."""
    cooldown_s: Seconds = 30.0
    """Least time between two fetches, whatever the tokens claim."""
    stale_s: Seconds = 86_400.0
    """Keys go on working this long while the issuer cannot be reached."""


class AdminToken(Section, frozen=True, kw_only=True):
    """One credential of the admin API."""

    id: Identifier
    token_sha256: Sha256Hex
    role: RoleName = "viewer"


class AuthSettings(Section, frozen=True, kw_only=True):
    """The `auth` section. Without any key or issuer nobody gets in, unless `insecure_no_auth` is spelled out."""

    insecure_no_auth: bool = False
    """Let everybody in as tenant `anonymous`. For a laptop."""
    api_keys: tuple[ApiKey, ...] = ()
    api_keys_file: str | None = None
    """File kept by `gir keys`; changes take effect within `keys_reload_s`."""
    keys_reload_s: Seconds = 2.0
    jwt: tuple[JwtIssuer, ...] = ()
    token_bytes_max: Count = 8_192
    """Longer credentials are refused unread."""
    tokens_cached_max: Count = 10_000
    """Verified tokens remembered until they expire; the oldest go first."""
    key_wait_s: Seconds = 0.3
    """Longest a request waits for an issuer's keys."""
