"""The router's one configuration file: its shape. What spans fields is checked in `validate`, changes in `policies`.

Everything under `policy` is reloaded when the file changes; the rest takes effect at the next start. Times end in `_s`;
0 never means "no limit". Paths are relative to the file. Secrets are named (environment, file) or given, and never
printed.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from gir.auth.settings import AdminToken, AuthSettings, JwtIssuer
from gir.control.validate import examine
from gir.model.ids import ClusterId
from gir.model.policy import PolicySnapshot
from gir.model.policy.base import Count, Section, Share
from gir.settings import Secret, parse_with_source, read_text

_NAME_WORDS = "a name of at most 64 letters, digits, '.', '_' and '-' that begins with a letter or digit"
Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", extra={"words": _NAME_WORDS}),
]
Grace = Annotated[float, msgspec.Meta(ge=0.0, le=3_600.0)]


class AdminSection(Section, frozen=True, kw_only=True):
    """Admin port. Without tokens only this machine may call."""

    listen: str = "127.0.0.1:9090"
    """`host:port`; port 0 takes any."""
    tokens: tuple[AdminToken, ...] = ()
    """Who may call: `viewer` looks, `operator` and `admin` act."""
    public_metrics: bool = False
    """/metrics without a token, for scrapers."""


class TlsSection(Section, frozen=True, kw_only=True):
    """Certificate of a port; with `client_ca` only callers whose certificate it signed may come in."""

    cert: str
    """PEM file with the certificate chain."""
    key: str
    """PEM file with the private key."""
    client_ca: str | None = None
    """PEM file of the authority that must have signed the caller's certificate; None asks for none."""


class ClusterTlsSection(Section, frozen=True, kw_only=True):
    """TLS towards clusters whose URL is https."""

    ca: str | None = None
    """PEM file of the authority to trust; None trusts the system's."""
    cert: str | None = None
    """PEM file with a certificate of our own, for clusters that ask for one."""
    key: str | None = None
    """PEM file with its key."""


class BeatsSection(Section, frozen=True, kw_only=True):
    """Port where agents report."""

    listen: str = "127.0.0.1:7070"
    """`host:port`; port 0 takes any."""
    tls: TlsSection | None = None
    """None: without TLS."""
    peers: tuple[str, ...] = ()
    """Beat addresses (`host:port`) of all replicas, told to agents so that they report to each."""


class AgentEntry(Section, frozen=True, kw_only=True):
    """A cluster that may report, and the credential it shares with routers: for its beats and for its data port."""

    cluster: Name
    """Cluster id the credential stands for; its agent cannot report for another."""
    token: Secret
    """The credential."""


class StoreSection(Section, frozen=True, kw_only=True):
    """Where limits are counted: in this process, or in Redis for all replicas."""

    kind: Literal["memory", "redis"] = "memory"
    """`memory`: in this process. `redis`: shared by all replicas."""
    url: Secret | None = None
    """Redis URL; it may hold a password, so it is given like a secret."""
    prefix: str = "gir"
    """First part of every key, so that several fleets can share a server."""
    replicas_min: Count = 1
    """Replicas to assume while the store has not told how many there are."""


class TelemetrySection(Section, frozen=True, kw_only=True):
    """Logs, traces, and what clients are told about decisions."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe line that is written."""
    log_format: Literal["json", "text"] = "json"
    """`json`: one object a line. `text`: for people."""
    access_log: bool = True
    """One line for each request."""
    otlp_endpoint: str | None = None
    """Base URL of an OTLP/HTTP collector; None sends no traces, and trace context passes through."""
    sample_share: Share = 1.0
    """Share of requests traced whose caller made no decision about it."""
    response_headers: bool = True
    """Tell clients which cluster served them, and why (`x-gir-*`)."""


class DrainSection(Section, frozen=True, kw_only=True):
    """What SIGTERM does."""

    listen_s: Grace = 5.0
    """Not ready, still listening: time for load balancers to look away."""
    finish_s: Grace = 60.0
    """Time for what runs to end."""


class RouterConfig(Section, frozen=True, kw_only=True):
    """Everything one router is told."""

    listen: str = "127.0.0.1:8080"
    """Data port, `host:port`; port 0 takes any."""
    name: str | None = None
    """Name of this replica; by default host name and port."""
    region: str = ""
    """Region this replica runs in; limits may be bound to it."""
    workers: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    """Processes on the data port, each a full replica."""
    admin: AdminSection = AdminSection()
    """Health, metrics, admin API, web UI."""
    beats: BeatsSection = BeatsSection()
    """Where agents report."""
    auth: AuthSettings = AuthSettings()
    """Who may ask."""
    agents: tuple[AgentEntry, ...] = ()
    """Clusters that may report."""
    cluster_tls: ClusterTlsSection | None = None
    """TLS towards clusters; None: the system's authorities, no certificate of our own."""
    store: StoreSection = StoreSection()
    """Counters of global limits."""
    telemetry: TelemetrySection = TelemetrySection()
    """Logs and traces."""
    tls: TlsSection | None = None
    """TLS of the data port; None: without."""
    drain: DrainSection = DrainSection()
    """Orderly stop."""
    policy: PolicySnapshot = PolicySnapshot()
    """What the operator decides about models, tenants, tiers and limits. Reloaded when the file changes."""

    def tokens(self) -> dict[ClusterId, str]:
        """Credential of each cluster. Raises ConfigError naming the entry."""
        return {
            ClusterId(entry.cluster): entry.token.read(f"agents[{index}].token")
            for index, entry in enumerate(self.agents)
        }


def load(path: Path) -> RouterConfig:
    """Read and check a configuration file as a whole. Raises ConfigError: one line for each thing that is wrong."""
    return from_text(read_text(path), source=str(path), base=path.resolve().parent)


def from_text(text: str, *, source: str, base: Path = Path()) -> RouterConfig:
    """The same, of a text; `source` begins every complaint, and paths in it are relative to `base`.

    The policy's version is left to who adopts it.
    """
    read, where = parse_with_source(
        text, RouterConfig, source=source, also=lambda rest, faulty: examine(_absolute(rest, base), faulty).errors
    )
    config: RouterConfig = _absolute(read, base)
    where.refuse(examine(config).errors)
    return msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, digest=digest_of(text)))


def digest_of(text: str) -> str:
    """Short hash of a configuration's text, the same on every replica that read the same."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def restart_fields(before: RouterConfig, after: RouterConfig) -> tuple[str, ...]:
    """Fields outside the policy in which two configurations differ, such as `admin.listen`: only a restart takes
    them up. Lists are named as a whole."""
    return tuple(_differences(before, after, "", frozenset({"policy"})))


def _differences(
    before: msgspec.Struct, after: msgspec.Struct, path: str, leave_out: frozenset[str] = frozenset()
) -> Iterator[str]:
    for name in before.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        if name in leave_out or old == new:
            continue
        if type(old) is type(new) and isinstance(old, msgspec.Struct) and not isinstance(old, Secret):
            yield from _differences(old, new, f"{path}{name}.")
        else:
            yield f"{path}{name}"


_PATHS: dict[type, tuple[str, ...]] = {
    TlsSection: ("cert", "key", "client_ca"),
    ClusterTlsSection: ("ca", "cert", "key"),
    Secret: ("file",),
    AuthSettings: ("api_keys_file",),
    JwtIssuer: ("jwks_file",),
}


def _absolute(value: Any, base: Path) -> Any:
    """`value` with every path in it taken relative to `base`."""
    if isinstance(value, tuple):
        return tuple(_absolute(item, base) for item in value)
    if not isinstance(value, msgspec.Struct):
        return value
    paths = _PATHS.get(type(value), ())
    changes = {}
    for name in value.__struct_fields__:
        held = getattr(value, name)
        changes[name] = str(base / held) if name in paths and held is not None else _absolute(held, base)
    return msgspec.structs.replace(value, **changes)
