"""The router's one configuration file: its shape, its bounds, and the policy it carries.

Everything under `policy` is reloaded when the file changes; the rest takes effect at the next start. Secrets are named
(environment, file) or given, and never printed.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gir.auth.settings import AdminToken, AuthSettings
from gir.control.validate import check_policy
from gir.model.ids import ClusterId
from gir.model.policy import PolicySnapshot
from gir.model.policy.base import Count, Section, Share
from gir.settings import ConfigError, Secret, host_and_port, parse, read_text

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Grace = Annotated[float, msgspec.Meta(ge=0.0, le=3_600.0)]


class AdminSection(Section, frozen=True, kw_only=True):
    """Admin port. Without tokens only this machine may call."""

    listen: str = "127.0.0.1:9090"
    tokens: tuple[AdminToken, ...] = ()
    public_metrics: bool = False
    """/metrics without a token, for scrapers."""


class TlsSection(Section, frozen=True, kw_only=True):
    """Certificate of a port; with `client_ca` only callers whose certificate it signed may come in."""

    cert: str
    key: str
    client_ca: str | None = None


class ClusterTlsSection(Section, frozen=True, kw_only=True):
    """TLS towards clusters whose URL is https. Without `ca` the system's authorities are trusted."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class BeatsSection(Section, frozen=True, kw_only=True):
    """Port where agents report."""

    listen: str = "127.0.0.1:7070"
    tls: TlsSection | None = None
    peers: tuple[str, ...] = ()
    """Beat addresses (`host:port`) of all replicas, told to agents so that they report to each."""


class AgentEntry(Section, frozen=True, kw_only=True):
    """A cluster that may report, and the credential it shares with routers: for its beats and for its data port."""

    cluster: Name
    token: Secret


class StoreSection(Section, frozen=True, kw_only=True):
    """Where limits are counted: in this process, or in Redis for all replicas."""

    kind: Literal["memory", "redis"] = "memory"
    url: Secret | None = None
    """Redis URL; it may hold a password, so it is given like a secret."""
    prefix: str = "gir"
    replicas_min: Count = 1
    """Replicas to assume while the store has not told how many there are."""


class TelemetrySection(Section, frozen=True, kw_only=True):
    """Logs, traces, and what clients are told about decisions."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    access_log: bool = True
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP collector; None sends no traces."""
    sample_share: Share = 1.0
    response_headers: bool = True
    """Tell clients which cluster served them, and why (`x-gir-*`)."""


class DrainSection(Section, frozen=True, kw_only=True):
    """SIGTERM: how long the listener stays open for those who have not heard, and how long streams may finish."""

    listen_s: Grace = 5.0
    finish_s: Grace = 60.0


class RouterConfig(Section, frozen=True, kw_only=True):
    """Everything one router is told."""

    listen: str = "127.0.0.1:8080"
    name: str | None = None
    """Name of this replica; by default host name and port."""
    region: str = ""
    """Region this replica runs in; limits may be bound to it."""
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    admin: AdminSection = AdminSection()
    beats: BeatsSection = BeatsSection()
    auth: AuthSettings = AuthSettings()
    agents: tuple[AgentEntry, ...] = ()
    cluster_tls: ClusterTlsSection | None = None
    store: StoreSection = StoreSection()
    telemetry: TelemetrySection = TelemetrySection()
    tls: TlsSection | None = None
    drain: DrainSection = DrainSection()
    policy: PolicySnapshot = PolicySnapshot()

    def tokens(self) -> dict[ClusterId, str]:
        """Credential of each cluster. Raises ConfigError naming the entry."""
        return {
            ClusterId(entry.cluster): entry.token.read(f"agents[{index}].token")
            for index, entry in enumerate(self.agents)
        }


def load(path: Path) -> RouterConfig:
    """Read and check a configuration file as a whole. Raises ConfigError naming field, value and fix."""
    return from_text(read_text(path), source=str(path))


def from_text(text: str, *, source: str) -> RouterConfig:
    """The same, of a text; `source` begins every complaint. The policy's version is left to who adopts it."""
    config = parse(text, RouterConfig, source=source)
    try:
        _check(config)
        check_policy(config.policy)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, digest=digest))


def _check(config: RouterConfig) -> None:
    host_and_port(config.listen, "listen")
    host_and_port(config.admin.listen, "admin.listen")
    host_and_port(config.beats.listen, "beats.listen")
    for index, peer in enumerate(config.beats.peers):
        host_and_port(peer, f"beats.peers[{index}]")
    seen: set[str] = set()
    for index, entry in enumerate(config.agents):
        if entry.cluster in seen:
            raise ConfigError(f"agents[{index}].cluster is {entry.cluster!r}, listed before; keep one entry")
        seen.add(entry.cluster)
    tokens = config.tokens()
    if len(set(tokens.values())) != len(tokens):
        raise ConfigError("agents: two clusters share a token; a token names its cluster, so give each its own")
    if config.store.kind == "redis" and config.store.url is None:
        raise ConfigError("store.url is missing; with kind redis give its URL, such as redis://127.0.0.1:6379/0")
    auth = config.auth
    if not (auth.api_keys or auth.api_keys_file or auth.jwt or auth.insecure_no_auth):
        raise ConfigError(
            "auth names no API key and no token issuer, so nobody could get in; add api_keys, api_keys_file or jwt, "
            "or spell out insecure_no_auth: true on a laptop"
        )
