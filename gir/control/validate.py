"""What is wrong with a router's configuration as a whole: between fields, and against the files it names.

A setting that could not take effect is refused like one that contradicts another, because an operator who wrote it
believes in it. Each check is a small function that yields complaints (field, value, fix); all of them run, so that one
look at the output is enough.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from gir.admit.rules import rule_faults
from gir.auth.jwks_fetch import check_jwks_url
from gir.auth.keyring import read_keys
from gir.health.ladder import ladder_faults
from gir.model.cluster import Intent
from gir.model.request import Criticality
from gir.place.check import placement_faults
from gir.settings import ConfigError, host_and_port

if TYPE_CHECKING:
    from gir.control.config import ClusterTlsSection, RouterConfig, TlsSection

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_CRITICALITIES = tuple(level.label for level in Criticality)
_INTENTS = tuple(intent.value for intent in Intent)


class Findings(msgspec.Struct):
    """What the checks found: what must be put right, and what is probably not meant."""

    errors: list[str] = []
    warnings: list[str] = []


def examine(config: "RouterConfig", without: frozenset[str] = frozenset()) -> Findings:
    """Run every check on a configuration whose paths are absolute; `without`: none that needs one of these sections."""
    checks = [check for sections, check in _CHECKS if not without.intersection(sections)]
    errors = [error for check in checks for error in _collected(check(config))]
    return Findings(errors, _warnings(config))


def _collected(complaints: Iterator[str]) -> list[str]:
    """All complaints; a check that raises ValueError has said its last one."""
    found: list[str] = []
    try:
        for complaint in complaints:
            found.append(complaint)  # noqa: PERF402 - what came before an exception must be kept
    except (ValueError, OSError) as error:
        found += str(error).splitlines()
    return found


def _of(check: Callable[[], object], field: str = "") -> Iterator[str]:
    """What one call refuses by ValueError or OSError, put under `field` if given."""
    try:
        check()
    except (ValueError, OSError) as error:
        yield from (f"{field}: {line}" if field else line for line in str(error).splitlines())


def _listeners(config: "RouterConfig") -> Iterator[str]:
    taken: dict[int, str] = {}
    for field, text in (
        ("listen", config.listen),
        ("admin.listen", config.admin.listen),
        ("beats.listen", config.beats.listen),
    ):
        try:
            _, port = host_and_port(text, field)
        except ConfigError as error:
            yield str(error)
            continue
        if port and port in taken:
            yield f"{field} is {text}: port {port} is already used by {taken[port]}; choose another"
        taken[port] = field
    host = config.admin.listen.rpartition(":")[0].strip("[]")
    if host and host not in LOOPBACK and not config.admin.tokens:
        yield f"admin.listen is {config.admin.listen} and admin.tokens is empty: nobody could call; add a token"
    if config.workers > 1 and config.listen.endswith(":0"):
        yield f"workers is {config.workers} and listen is {config.listen}: each would take another port; name one"
    for index, peer in enumerate(config.beats.peers):
        yield from _of(partial(host_and_port, peer, f"beats.peers[{index}]"))


def _tls_files(config: "RouterConfig") -> Iterator[str]:
    sections: tuple[tuple[str, TlsSection | ClusterTlsSection | None], ...] = (
        ("tls", config.tls),
        ("beats.tls", config.beats.tls),
        ("cluster_tls", config.cluster_tls),
    )
    for field, section in sections:
        if section is None:
            continue
        if (section.cert is None) is not (section.key is None):
            yield f"{field}: cert and key go together; give both or neither"
        for name in ("cert", "key", "client_ca", "ca"):
            path = getattr(section, name, None)
            if path is not None and not Path(path).is_file():
                yield f"{field}.{name} is {path}: no such file; give the path of a PEM file"


def _access(config: "RouterConfig") -> Iterator[str]:
    auth = config.auth
    if not (auth.insecure_no_auth or auth.api_keys or auth.api_keys_file or auth.jwt):
        yield (
            "auth: there is no api_keys, api_keys_file or jwt, so nobody could call; add one, or spell out "
            "insecure_no_auth: true to let everybody in"
        )
    if auth.insecure_no_auth and (auth.api_keys or auth.api_keys_file or auth.jwt):
        yield "auth.insecure_no_auth is true, so keys and issuers would never be asked; remove one or the other"
    for field, key, names in (
        ("auth.api_keys", "id", [each.id for each in auth.api_keys]),
        ("auth.api_keys", "key_sha256", [each.key_sha256 for each in auth.api_keys]),
        ("auth.jwt", "issuer", [issuer.issuer for issuer in auth.jwt]),
        ("admin.tokens", "id", [token.id for token in config.admin.tokens]),
        ("admin.tokens", "token_sha256", [token.token_sha256 for token in config.admin.tokens]),
    ):
        for index, name in _twice(names):
            held = f"{name[:12]}..." if key.endswith("sha256") else repr(name)
            yield f"{field}[{index}].{key} is {held}, which is listed twice; keep one of them"
    for index, issuer in enumerate(auth.jwt):
        field = f"auth.jwt[{index}]"
        if (issuer.jwks_url is None) is (issuer.jwks_file is None):
            yield f"{field}: give exactly one of jwks_url and jwks_file"
        if issuer.jwks_url is not None:
            yield from _of(partial(check_jwks_url, issuer.jwks_url, f"{field}.jwks_url"))
        if issuer.jwks_file is not None and not Path(issuer.jwks_file).is_file():
            yield f"{field}.jwks_file is {issuer.jwks_file}: no such file; give the path of a JWKS document"
    if auth.api_keys_file is not None:
        yield from _of(partial(read_keys, Path(auth.api_keys_file)), "auth.api_keys_file")


def _agents(config: "RouterConfig") -> Iterator[str]:
    yield from (
        f"agents[{index}].cluster is {name!r}, which is listed twice; a cluster has one credential, remove one entry"
        for index, name in _twice([agent.cluster for agent in config.agents])
    )
    owner: dict[str, str] = {}
    for index, agent in enumerate(config.agents):
        try:
            token = agent.token.read(f"agents[{index}].token")
        except ConfigError as error:
            yield str(error)
            continue
        if token in owner:
            yield (
                f"agents[{index}].token is also that of cluster {owner[token]}: it would not tell the two apart; "
                "give each cluster its own"
            )
        owner[token] = agent.cluster


def _store(config: "RouterConfig") -> Iterator[str]:
    store = config.store
    if store.kind == "memory":
        if store.url is not None:
            yield "store.url is given, but store.kind is memory, which has none; set kind: redis or remove it"
        return
    if store.url is None:
        yield "store.url is missing: store.kind is redis; give its address, such as redis://127.0.0.1:6379/0"
        return
    from gir.stores.redis_url import redis_client

    redis_client(store.url.read("store.url"))


def _telemetry(config: "RouterConfig") -> Iterator[str]:
    endpoint = config.telemetry.otlp_endpoint
    if endpoint is None:
        if config.telemetry.sample_share != 1.0:
            yield "telemetry.sample_share is set, but otlp_endpoint is not, so nothing is traced; set it or remove it"
    elif urlsplit(endpoint).scheme not in {"http", "https"} or not urlsplit(endpoint).hostname:
        yield f"telemetry.otlp_endpoint is {endpoint}: give a base URL such as http://127.0.0.1:4318"


def _policy_names(config: "RouterConfig") -> Iterator[str]:
    policy = config.policy
    if policy.version or policy.digest:
        field = "version" if policy.version else "digest"
        yield f"policy.{field} is {getattr(policy, field)!r}: version and digest are set by the router; remove it"
    levels = [
        *((f"policy.tiers[{index}].criticality_min", tier.criticality_min) for index, tier in enumerate(policy.tiers)),
        *(
            (f"policy.tenants[{index}].{name}", getattr(tenant, name))
            for index, tenant in enumerate(policy.tenants)
            for name in ("criticality_max", "criticality_default")
        ),
    ]
    yield from (
        f"{field} is {value!r}: use {', '.join(_CRITICALITIES)}"
        for field, value in levels
        if value not in _CRITICALITIES
    )
    for index, cluster in enumerate(policy.clusters):
        if cluster.intent not in _INTENTS:
            yield f"policy.clusters[{index}].intent is {cluster.intent!r}: use {', '.join(_INTENTS)}"
        tiers = [tier.name for tier in policy.tiers]
        if cluster.tier is not None and cluster.tier not in tiers:
            yield (
                f"policy.clusters[{index}].tier is {cluster.tier!r}, which policy.tiers does not declare; use "
                f"{' or '.join(tiers) or 'none'}, or add it there"
            )
    for index, tenant in enumerate(policy.tenants):
        if _rank(tenant.criticality_default) > _rank(tenant.criticality_max):
            yield (
                f"policy.tenants[{index}].criticality_default is {tenant.criticality_default}, above its "
                f"criticality_max {tenant.criticality_max}; lower it"
            )


def _rank(name: str) -> int:
    return Criticality[name.upper()] if name in _CRITICALITIES else 0


def _references(config: "RouterConfig") -> Iterator[str]:
    """Tenants and keys that are named must exist, where it can be known which exist."""
    policy, auth = config.policy, config.auth
    declared = {str(tenant.id) for tenant in policy.tenants}
    with_keys = {str(key.tenant) for key in auth.api_keys}
    with_keys.update(str(tenant) for issuer in auth.jwt for tenant in issuer.tenants or ())
    open_ended = auth.api_keys_file is not None or any(issuer.tenants is None for issuer in auth.jwt)
    known = declared or (with_keys | ({"anonymous"} if auth.insecure_no_auth else set()))
    named: list[tuple[str, str]] = [
        *((f"policy.limits[{index}].tenant", rule.tenant) for index, rule in enumerate(policy.limits) if rule.tenant),
        *(
            (f"policy.clusters[{index}].tenants", str(tenant))
            for index, cluster in enumerate(policy.clusters)
            for tenant in cluster.tenants or ()
        ),
    ]
    if declared:
        named += [(f"auth.api_keys[{index}].tenant", str(key.tenant)) for index, key in enumerate(auth.api_keys)]
    if declared or not open_ended:
        for field, tenant in named:
            if tenant not in known:
                yield (
                    f"{field} is {tenant!r}, which is no tenant; known: {', '.join(sorted(known)) or 'none'}; "
                    "add it to policy.tenants or correct it"
                )
    if auth.api_keys_file is None and not auth.jwt:
        keys = {key.id for key in auth.api_keys}
        for index, rule in enumerate(policy.limits):
            if rule.key is not None and rule.key not in keys:
                yield f"policy.limits[{index}].key is {rule.key!r}, which is no id in auth.api_keys; correct it"


def _placement(config: "RouterConfig") -> Iterator[str]:
    """PLACE knows what tiers, residency, aliases and rewrites may say."""
    yield from (f"policy.{fault}" for fault in placement_faults(config.policy))


def _health(config: "RouterConfig") -> Iterator[str]:
    yield from (f"policy.{fault}" for fault in ladder_faults(config.policy.health))


def _limits(config: "RouterConfig") -> Iterator[str]:
    shared = config.store.kind == "redis"
    yield from rule_faults(config.policy.limits, region=config.region, shared=shared, processes=config.workers)


def _forward(config: "RouterConfig") -> Iterator[str]:
    forward = config.policy.forward
    for name in ("connect_s", "head_s", "first_token_s"):
        value = getattr(forward, name)
        if value > forward.deadline_client_max_s:
            yield (
                f"policy.forward.{name} is {value:g}, beyond deadline_client_max_s {forward.deadline_client_max_s:g}: "
                "it could never fire; lower it"
            )
    if forward.total_s > forward.deadline_client_max_s:
        yield (
            f"policy.forward.total_s is {forward.total_s:g}, above deadline_client_max_s "
            f"{forward.deadline_client_max_s:g}; lower it or raise the other"
        )
    hedges = [("policy.forward.hedge_after_s", forward.hedge_after_s)]
    hedges += [
        (f"policy.models[{index}].hedge_after_s", model.hedge_after_s)
        for index, model in enumerate(config.policy.models)
        if model.hedge_after_s is not None
    ]
    for field, after_s in hedges:
        if after_s and after_s >= forward.first_token_s:
            yield (
                f"{field} is {after_s:g}, not before first_token_s {forward.first_token_s:g}: it would never hedge; "
                "lower it"
            )
        if after_s and forward.attempts_max == 1:
            yield (
                f"{field} is {after_s:g}, but policy.forward.attempts_max is 1, which leaves no second attempt; "
                "raise that, or set this to 0"
            )


def _flow(config: "RouterConfig") -> Iterator[str]:
    flow = config.policy.flow
    if flow.critical_reserve + flow.sheddable_headroom > 1.0:
        yield (
            f"policy.flow.critical_reserve is {flow.critical_reserve:g}: with sheddable_headroom "
            f"{flow.sheddable_headroom:g} they take more than all slots; their sum must not exceed 1"
        )
    if flow.bodies_bytes_max < config.policy.forward.body_bytes_max:
        yield (
            f"policy.flow.bodies_bytes_max is {flow.bodies_bytes_max}, below forward.body_bytes_max "
            f"{config.policy.forward.body_bytes_max}: the longest body could never come in; raise it or lower the other"
        )
    if flow.queue_max > flow.in_flight_max:
        yield (
            f"policy.flow.queue_max is {flow.queue_max}, above in_flight_max {flow.in_flight_max}, which counts the "
            "waiting too; lower it"
        )


_CHECKS: tuple[tuple[tuple[str, ...], Callable[["RouterConfig"], Iterator[str]]], ...] = (
    (("listen", "admin", "beats", "workers"), _listeners),
    (("tls", "beats", "cluster_tls"), _tls_files),
    (("auth", "admin"), _access),
    (("agents",), _agents),
    (("store",), _store),
    (("telemetry",), _telemetry),
    (("policy",), _policy_names),
    (("policy", "auth"), _references),
    (("policy",), _placement),
    (("policy",), _health),
    (("policy", "region", "store", "workers"), _limits),
    (("policy",), _forward),
    (("policy",), _flow),
)
"""Each check with the sections it looks at."""


def _warnings(config: "RouterConfig") -> list[str]:
    """What works and is probably not meant."""
    found: list[str] = []
    if not config.agents:
        found.append("agents is empty: no cluster can report, so nothing can be served")
    if config.auth.insecure_no_auth:
        found.append("auth.insecure_no_auth is true: everybody who reaches the port may use it")
    keys_file = config.auth.api_keys_file
    if keys_file is not None and not Path(keys_file).exists():
        found.append(f"auth.api_keys_file is {keys_file}, which is not there: keys count from when it is")
    for field, text, guarded in (
        ("beats.listen", config.beats.listen, config.beats.tls is not None),
        ("listen", config.listen, config.tls is not None),
    ):
        if text.rpartition(":")[0].strip("[]") not in LOOPBACK and not guarded:
            found.append(f"{field} is {text} without TLS: credentials cross the network in the clear")
    for cheaper, dearer in zip(config.policy.tiers, config.policy.tiers[1:], strict=False):
        if cheaper.price_per_slot_hour > dearer.price_per_slot_hour:
            found.append(f"policy.tiers: {cheaper.name} is filled before {dearer.name}, which is cheaper")
    return found


def _twice(names: Iterable[str]) -> list[tuple[int, str]]:
    """Position and name of each that stands further up already."""
    seen: set[str] = set()
    repeated = []
    for index, name in enumerate(names):
        if name in seen:
            repeated.append((index, name))
        seen.add(name)
    return repeated
