"""The agent's one configuration file: its shape, its bounds, and what cannot be checked field by field.

Times end in `_s`; 0 never means "no limit". Secrets are named (environment, file) or given, and never printed.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from gir.model.errors import ErrorKind
from gir.model.policy.base import Section
from gir.net.pool import Endpoint
from gir.settings import ConfigError, Secret, host_and_port, parse_with_source, read_text
from gir.shape import misfits
from tier1_agent.discovery import PodEntry, pods_of
from tier1_agent.gate import GateSettings
from tier1_agent.pool import PoolSettings
from tier1_agent.scorers import PRESETS, Preset, Weights

Seconds = Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]
_ANY_HOST = frozenset({"0.0.0.0", "::"})  # noqa: S104  # compared, not bound
_NAME_WORDS = "a name of at most 128 letters, digits, '.', '_' and '-' that begins with a letter or digit"
Name = Annotated[
    str,
    msgspec.Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", extra={"words": _NAME_WORDS}),
]


class AdminSection(Section, frozen=True, kw_only=True):
    """Admin port. Without tokens only this machine may call."""

    listen: str = "127.0.0.1:9101"
    tokens: tuple[Secret, ...] = ()
    public_metrics: bool = False
    """/metrics without a token, for scrapers."""


class PodsSection(Section, frozen=True, kw_only=True):
    """Where pods come from: a file that is watched, or a list right here."""

    file: str | None = None
    static: tuple[PodEntry, ...] = ()
    poll_s: Seconds = 1.0


class ScrapeSection(Section, frozen=True, kw_only=True):
    """How pods' metrics are read."""

    interval_s: Annotated[float, msgspec.Meta(ge=0.05, le=10.0)] = 0.25
    timeout_s: Seconds = 1.0
    stale_periods: Annotated[int, msgspec.Meta(ge=2, le=100)] = 3
    """Periods without a good scrape after which a pod gets no new work."""
    ramp_s: Annotated[float, msgspec.Meta(gt=0.0, le=600.0)] = 10.0
    page_bytes_max: Annotated[int, msgspec.Meta(ge=1_024)] = 4 * 1024 * 1024
    models_interval_s: Seconds = 10.0
    """How often a pod's own model list is read: it names loaded adapters."""


class PickerSection(Section, frozen=True, kw_only=True):
    """A preset, and weights that differ from it (`expectedWork`, `prefix`, `lru`, `queue`, ...)."""

    preset: Preset = "weighted"
    weights: dict[str, float] = msgspec.field(default_factory=dict)
    prefix_bytes_max: Annotated[int, msgspec.Meta(ge=1024 * 1024)] = 64 * 1024 * 1024


class GateSection(Section, frozen=True, kw_only=True):
    """Concurrency per pod and the queue before it."""

    concurrent_max_per_pod: Count | None = None
    queue_max: Annotated[int, msgspec.Meta(ge=0)] = 1_000
    wait_max_s: Annotated[float, msgspec.Meta(gt=0.0, le=600.0)] = 60.0
    overflow_status: Literal[429, 503] = 429


class ForwardSection(Section, frozen=True, kw_only=True):
    """Deadlines and bounds of the data path."""

    attempts_max: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    connect_s: Seconds = 0.5
    head_s: Seconds = 120.0
    whole_s: Seconds = 600.0
    """In place of `head_s` for answers that are not streamed: engines send the head when all is generated."""
    first_token_s: Seconds = 120.0
    idle_s: Seconds = 60.0
    total_s: Seconds = 3_600.0
    body_bytes_max: Count = 32 * 1024 * 1024
    bodies_bytes_max: Count = 2 * 1024 * 1024 * 1024
    """Bodies of all requests in flight, together; a request whose body would not fit gets 503."""
    response_bytes_max: Count = 64 * 1024 * 1024


class DrainSection(Section, frozen=True, kw_only=True):
    """SIGTERM: how long the door stays open, and how long streams may finish."""

    listen_s: Annotated[float, msgspec.Meta(ge=0.0, le=600.0)] = 2.0
    finish_s: Annotated[float, msgspec.Meta(ge=0.0, le=3_600.0)] = 30.0


class TelemetrySection(Section, frozen=True, kw_only=True):
    """Logs."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"
    access_log: bool = False
    """One line for each request; the router has its own."""


class TlsSection(Section, frozen=True, kw_only=True):
    """Certificate of the data port; with `client_ca` only routers whose certificate it signed may call."""

    cert: str
    key: str
    client_ca: str | None = None


class BeatTlsSection(Section, frozen=True, kw_only=True):
    """TLS towards the routers' beat port. Without `ca` the system's authorities are trusted."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class AgentConfig(Section, frozen=True, kw_only=True):
    """Everything one agent is told."""

    cluster: Name
    region: Name
    zone: str = ""
    tier: Name
    price_per_slot_hour: Annotated[float, msgspec.Meta(ge=0.0)] = 0.0
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    listen: str = "127.0.0.1:8101"
    advertise_url: str | None = None
    admin: AdminSection = AdminSection()
    token: Secret | None = None
    insecure_no_auth: bool = False
    tls: TlsSection | None = None
    routers: tuple[str, ...] = ()
    beat_tls: BeatTlsSection | None = None
    pods: PodsSection = PodsSection()
    scrape: ScrapeSection = ScrapeSection()
    picker: PickerSection = PickerSection()
    gate: GateSection = GateSection()
    forward: ForwardSection = ForwardSection()
    drain: DrainSection = DrainSection()
    telemetry: TelemetrySection = TelemetrySection()

    def pool_settings(self) -> PoolSettings:
        """What pools need of it."""
        return PoolSettings(
            weights=_weights(self.picker),
            round_robin=self.picker.preset == "roundrobin",
            stale_after_s=self.scrape.interval_s * self.scrape.stale_periods,
            ramp_s=self.scrape.ramp_s,
            index_bytes_max=self.picker.prefix_bytes_max,
            concurrent_max_per_pod=self.gate.concurrent_max_per_pod,
        )

    def gate_settings(self) -> GateSettings:
        """What the gate needs of it."""
        overflow = ErrorKind.OVERLOADED if self.gate.overflow_status == 429 else ErrorKind.NO_CAPACITY
        return GateSettings(queue_max=self.gate.queue_max, wait_max_s=self.gate.wait_max_s, overflow=overflow)


def load(path: Path) -> AgentConfig:
    """Read and check a configuration file. Raises ConfigError: a line for each fault, naming field, value and fix."""
    base = path.parent
    config, where = parse_with_source(
        read_text(path), AgentConfig, source=str(path), also=lambda rest, faulty: _of_the_rest(rest, faulty, base)
    )
    where.refuse(_faults(config, base))
    return config


def _of_the_rest(rest: AgentConfig, faulty: frozenset[str], base: Path) -> Iterator[str]:
    """Faults of a file whose `faulty` sections do not fit their types: each section is judged by itself."""
    if "insecure_no_auth" in faulty:
        faulty |= {"token"}
    yield from (fault for fault in _faults(rest, base) if re.split(r"\W", fault, maxsplit=1)[0] not in faulty)


def _faults(config: AgentConfig, base: Path) -> Iterator[str]:
    """What spans fields or the world outside."""
    for field, text in (
        ("listen", config.listen),
        ("admin.listen", config.admin.listen),
        *((f"routers[{index}]", router) for index, router in enumerate(config.routers)),
    ):
        yield from _refused(partial(host_and_port, text, field))
    if config.token is None and not config.insecure_no_auth:
        yield "token is missing: give one (token: {file: ...}), or say insecure_no_auth: true"
    if config.token is not None:
        yield from _refused(partial(config.token.read, "token", base))
    for index, token in enumerate(config.admin.tokens):
        yield from _refused(partial(token.read, f"admin.tokens[{index}]", base))
    if config.advertise_url is not None:
        for fault in _refused(partial(Endpoint.parse, config.advertise_url)):
            yield f"advertise_url is {fault.removeprefix('url ')}"
    elif config.routers and config.listen.rpartition(":")[0].strip("[]") in _ANY_HOST:
        yield f"listen is {config.listen!r}, which routers cannot dial: give the URL they can as advertise_url"
    yield from _pod_faults(config.pods, base)
    yield from _gate_faults(config.gate)
    if config.forward.bodies_bytes_max < config.forward.body_bytes_max:
        yield (
            f"forward.bodies_bytes_max is {config.forward.bodies_bytes_max}, below body_bytes_max "
            f"{config.forward.body_bytes_max}: the longest body could never come in; raise it or lower the other"
        )
    yield from _refused(partial(_weights, config.picker))


def _refused(call: Callable[[], object]) -> list[str]:
    """What one call refuses by ValueError."""
    try:
        call()
    except ValueError as error:
        return str(error).splitlines()
    return []


def _pod_faults(pods: PodsSection, base: Path) -> Iterator[str]:
    if (pods.file is None) == (not pods.static):
        yield "pods: give either file (a YAML file of pods, watched) or static (a list), and not both"
    elif pods.static:
        yield from _refused(partial(pods_of, pods.static, source="pods.static", base=base))
    elif pods.file is not None and not (base / pods.file).is_file():
        yield f"pods.file is {pods.file!r}: no such file beside the configuration file; create it or correct the path"


def _gate_faults(gate: GateSection) -> Iterator[str]:
    """A limit that nothing enforces is a trap: refuse it."""
    default = GateSection()
    if gate.concurrent_max_per_pod is not None:
        return
    for field in ("queue_max", "wait_max_s", "overflow_status"):
        value = getattr(gate, field)
        if value != getattr(default, field):
            yield (
                f"gate.{field} is {value:g}, but gate.concurrent_max_per_pod is not set, so nothing ever waits and the "
                "limit would never apply; set gate.concurrent_max_per_pod or remove it"
            )


def _weights(picker: PickerSection) -> Weights:
    """The preset's weights with the given ones put over them."""
    if not picker.weights:
        return PRESETS[picker.preset]
    if picker.preset == "roundrobin":
        raise ConfigError("picker.weights: the roundrobin preset weighs nothing; choose another preset or remove them")
    given = msgspec.to_builtins(PRESETS[picker.preset]) | picker.weights
    faults = [complaint for _, complaint in misfits(given, Weights, ".picker.weights")]
    if faults:
        raise ConfigError("\n".join(faults))
    return msgspec.convert(given, Weights)
