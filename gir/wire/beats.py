"""What the tiers tell each other, between protobuf and our own values; the one place where its meaning is checked.

Protobuf guarantees types, nothing more: a NaN, more free slots than there are, or a model named twice decode happily.
`decode_*` refuse such a message as a whole, with a reason short enough for a metric label, and the caller keeps the
last good one. What is merely unknown (a field or enum value of a newer schema, an absent signal) is never an error.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import msgspec
from google.protobuf.message import DecodeError

from gir.model.beat import AgentHello, BeatReport, Condition
from gir.model.cluster import PoolState
from gir.model.ids import ClusterId, ModelId, RegionId, TierName
from gir.wire.v1 import fleet_pb2 as pb

SCHEMA: Final = 1
"""Revision of fleet.proto we were built with; for logs only."""

MESSAGE_BYTES_MAX = 1024 * 1024
TRANSPORT_BYTES_MAX = 16 * MESSAGE_BYTES_MAX
"""What gRPC lets through: larger than what is accepted, because a message above it closes the stream."""
POOLS_MAX = 1_000
ADAPTERS_MAX = 5_000
LABELS_MAX = 32
WARNINGS_MAX = 64
PEERS_MAX = 64
DIRECTIVES_MAX = 200
NAME_CHARS_MAX = 256
CARD_BYTES_MAX = 16 * 1024
COUNT_MAX = 2**53
"""Beyond it a float no longer counts by ones; no fleet has as many of anything."""
RATE_MAX = 1e9

_CLUSTER_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_PEER = re.compile(r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}")
_COUNTS = ("pods_ready", "pods_warming", "slots_total", "slots_free")
_KNOWN_COUNTS = ("running", "waiting", "waiting_tokens", "kv_tokens_total", "kv_tokens_used", "context_tokens_max")
_KNOWN_RATES = (
    "prefill_tokens_per_s",
    "decode_tokens_per_s",
    "service_rate_per_s",
    "ttft_p50_s",
    "ttft_p95_s",
    "error_rate",
)
_CONDITIONS = {
    pb.CONDITION_DRAINING: Condition.DRAINING,
    pb.CONDITION_WARMING: Condition.WARMING,
}
_CONDITION_CODES = {
    Condition.SERVING: pb.CONDITION_SERVING,
    Condition.DRAINING: pb.CONDITION_DRAINING,
    Condition.WARMING: pb.CONDITION_WARMING,
}


class BeatRefused(Exception):  # noqa: N818 - named for what happened to the beat
    """A message means nothing sensible. `reason` is a metric label; `field` and `value` are for people."""

    def __init__(self, reason: str, field: str, value: object, fix: str) -> None:
        shown = str(value)
        super().__init__(f"{field} is {shown if len(shown) <= 80 else shown[:80] + '...'}: {fix}")
        self.reason = reason
        self.field = field
        self.value = value


class Goodbye(msgspec.Struct, frozen=True):
    """Last words of an agent."""

    epoch: int
    seq: int
    reason: str = ""


class Drain(msgspec.Struct, frozen=True):
    """Directive: take nothing new."""

    reason: str = ""


class Limit(msgspec.Struct, frozen=True):
    """Directive: run at most `concurrency_max` requests of `model` at once."""

    model: ModelId
    concurrency_max: int


Directive = Drain | Limit


class Ack(msgspec.Struct, frozen=True):
    """Answer to one beat. `refused` is empty, or why the beat was not taken."""

    epoch: int
    seq: int
    refused: str = ""
    directives: tuple[Directive, ...] = ()


class Welcome(msgspec.Struct, frozen=True):
    """Answer to a Hello."""

    interval_s: float
    peers: tuple[str, ...] = ()
    """`host:port` of every router replica's beat port, as far as they are known."""
    policy_version: int = 0
    router: str = ""


def parse_agent_message(data: bytes) -> pb.AgentMessage | BeatRefused:
    """Message from its bytes; the refusal is returned, not raised, because one bad message must not end a stream."""
    if len(data) > MESSAGE_BYTES_MAX:
        return BeatRefused("too_large", "message", f"{len(data)} bytes", f"at most {MESSAGE_BYTES_MAX} are accepted")
    try:
        return pb.AgentMessage.FromString(data)
    except DecodeError:
        return BeatRefused("unreadable", "message", f"{len(data)} bytes", "not an AgentMessage of gir.v1")


def decode_hello(hello: pb.Hello) -> AgentHello:
    """Who speaks. Raises BeatRefused."""
    if not _CLUSTER_NAME.fullmatch(hello.cluster):
        _refuse("bad_name", "cluster", hello.cluster, "1 to 64 letters, digits, dots, dashes or underscores are a name")
    _check_url(hello.data_url)
    if hello.epoch == 0:
        _refuse("missing", "epoch", 0, "must grow with each start of the agent, from 1")
    if len(hello.labels) > LABELS_MAX:
        _refuse("too_many", "labels", len(hello.labels), f"at most {LABELS_MAX} are accepted")
    for key, value in hello.labels.items():
        _name("labels", key)
        _text(f"labels.{key}", value)
    return AgentHello(
        cluster=ClusterId(hello.cluster),
        region=RegionId(_name("region", hello.region)),
        zone=_text("zone", hello.zone),
        url=hello.data_url,
        tier=TierName(_name("tier", hello.tier)),
        price_per_slot_hour=_rate("price_per_slot_hour", hello.price_per_slot_hour),
        epoch=hello.epoch,
        version=_text("agent_version", hello.agent_version),
        labels=dict(hello.labels),
    )


def decode_beat(beat: pb.Beat, *, cluster: ClusterId) -> BeatReport:
    """State of `cluster`, whose credential the stream carries. Raises BeatRefused."""
    if len(beat.pools) > POOLS_MAX:
        _refuse("too_many", "pools", len(beat.pools), f"at most {POOLS_MAX} are accepted")
    warnings = [text[:NAME_CHARS_MAX] for text in beat.warnings[:WARNINGS_MAX]]
    pools: dict[ModelId, PoolState] = {}
    for position, sent in enumerate(beat.pools):
        pool = _pool(f"pools[{position}]", sent, warnings)
        if pool.model in pools:
            _refuse("duplicate", f"pools[{position}].model", pool.model, "each model has one pool")
        pools[pool.model] = pool
    return BeatReport(
        cluster=cluster,
        epoch=beat.epoch,
        seq=beat.seq,
        pools=tuple(pools.values()),
        condition=_CONDITIONS.get(beat.condition, Condition.SERVING),
        warnings=tuple(warnings[:WARNINGS_MAX]),
    )


def _pool(where: str, sent: pb.Pool, warnings: list[str]) -> PoolState:
    for names, field in ((sent.adapters_resident, "adapters_resident"), (sent.adapters_loadable, "adapters_loadable")):
        if len(names) > ADAPTERS_MAX:
            _refuse("too_many", f"{where}.{field}", len(names), f"at most {ADAPTERS_MAX} are accepted")
        for name in names:
            _name(f"{where}.{field}", name)
    known: dict[str, Any] = {name: _count(f"{where}.{name}", getattr(sent, name)) for name in _COUNTS}
    known |= {name: _count(f"{where}.{name}", getattr(sent, name)) for name in _KNOWN_COUNTS if sent.HasField(name)}
    known |= {name: _rate(f"{where}.{name}", getattr(sent, name)) for name in _KNOWN_RATES if sent.HasField(name)}
    _at_most(where, known, "slots_free", "slots_total")
    _at_most(where, known, "kv_tokens_used", "kv_tokens_total")
    if known.get("error_rate", 0.0) > 1.0:
        _refuse("out_of_range", f"{where}.error_rate", known["error_rate"], "a share lies between 0 and 1")
    return PoolState(
        model=ModelId(_name(f"{where}.model", sent.model)),
        adapters_resident=frozenset(map(ModelId, sent.adapters_resident)),
        adapters_loadable=frozenset(map(ModelId, sent.adapters_loadable)),
        cards=_cards(sent.cards, warnings),
        **known,
    )


def _cards(sent: Mapping[str, str], warnings: list[str]) -> dict[ModelId, str]:
    """Cards only decorate /v1/models, so one that is not a JSON object is left out and said, not refused."""
    cards: dict[ModelId, str] = {}
    for name, card in sent.items():
        if len(cards) < ADAPTERS_MAX and len(card) <= CARD_BYTES_MAX and _is_object(card) and _is_name(name):
            cards[ModelId(name)] = card
        else:
            warnings.append(f"card_unusable:{name[:NAME_CHARS_MAX]}")
    return cards


def _is_object(card: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(card), dict)
    except (msgspec.DecodeError, RecursionError):
        return False


def decode_goodbye(goodbye: pb.Goodbye) -> Goodbye:
    """Last words; never refused, since refusing them would keep a stopped agent in service."""
    return Goodbye(goodbye.epoch, goodbye.seq, goodbye.reason[:NAME_CHARS_MAX])


def decode_welcome(welcome: pb.Welcome) -> Welcome:
    """Terms of a router. Peers that are no addresses are left out; the interval is brought inside 0.1 to 60 s."""
    peers = [peer for peer in welcome.peers[:PEERS_MAX] if _PEER.fullmatch(peer)]
    interval_s = min(60.0, max(0.1, welcome.beat_interval_ms / 1000.0))
    return Welcome(interval_s, tuple(peers), welcome.policy_version, welcome.router_id[:NAME_CHARS_MAX])


def decode_ack(ack: pb.Ack) -> Ack:
    """Answer of a router. Directives of kinds we do not know are left out."""
    directives: list[Directive] = []
    for sent in ack.directives[:DIRECTIVES_MAX]:
        match sent.WhichOneof("body"):
            case "drain":
                directives.append(Drain(sent.drain.reason[:NAME_CHARS_MAX]))
            case "limit" if sent.limit.model:
                directives.append(Limit(ModelId(sent.limit.model[:NAME_CHARS_MAX]), sent.limit.concurrency_max))
            case _:
                pass
    return Ack(ack.epoch, ack.seq, ack.refused[:1_000], tuple(directives))


def encode_hello(hello: AgentHello) -> pb.AgentMessage:
    """First message of a stream."""
    return pb.AgentMessage(
        hello=pb.Hello(
            cluster=hello.cluster,
            region=hello.region,
            zone=hello.zone,
            data_url=hello.url,
            tier=hello.tier,
            price_per_slot_hour=hello.price_per_slot_hour,
            epoch=hello.epoch,
            agent_version=hello.version,
            labels=dict(hello.labels),
            schema=SCHEMA,
        )
    )


def encode_beat(report: BeatReport) -> pb.AgentMessage:
    """One beat; what the report does not know is left out of the message."""
    pools = []
    for pool in report.pools:
        known = {name: getattr(pool, name) for name in (*_KNOWN_COUNTS, *_KNOWN_RATES)}
        pools.append(
            pb.Pool(
                model=pool.model,
                adapters_resident=sorted(pool.adapters_resident),
                adapters_loadable=sorted(pool.adapters_loadable),
                cards={str(name): card for name, card in pool.cards.items()},
                **{name: getattr(pool, name) for name in _COUNTS},
                **{name: value for name, value in known.items() if value is not None},
            )
        )
    condition = _CONDITION_CODES[report.condition]
    beat = pb.Beat(epoch=report.epoch, seq=report.seq, pools=pools, condition=condition, warnings=report.warnings)
    return pb.AgentMessage(beat=beat)


def encode_goodbye(goodbye: Goodbye) -> pb.AgentMessage:
    """Last message of a stream."""
    return pb.AgentMessage(goodbye=pb.Goodbye(epoch=goodbye.epoch, seq=goodbye.seq, reason=goodbye.reason))


def encode_welcome(welcome: Welcome) -> pb.RouterMessage:
    """Answer to a Hello."""
    return pb.RouterMessage(
        welcome=pb.Welcome(
            beat_interval_ms=round(welcome.interval_s * 1000.0),
            peers=welcome.peers,
            policy_version=welcome.policy_version,
            router_id=welcome.router,
            schema=SCHEMA,
        )
    )


def encode_ack(ack: Ack) -> pb.RouterMessage:
    """Answer to a beat."""
    directives = [
        pb.Directive(drain=pb.Drain(reason=wish.reason))
        if isinstance(wish, Drain)
        else pb.Directive(limit=pb.Limit(model=wish.model, concurrency_max=wish.concurrency_max))
        for wish in ack.directives
    ]
    return pb.RouterMessage(ack=pb.Ack(epoch=ack.epoch, seq=ack.seq, refused=ack.refused, directives=directives))


def _refuse(reason: str, field: str, value: object, fix: str) -> NoReturn:
    raise BeatRefused(reason, field, value, fix)


def _is_name(text: str) -> bool:
    return 0 < len(text) <= NAME_CHARS_MAX and text.isprintable()


def _name(field: str, text: str) -> str:
    if not _is_name(text):
        _refuse("bad_name", field, repr(text), f"1 to {NAME_CHARS_MAX} printable characters are a name")
    return text


def _text(field: str, text: str) -> str:
    return _name(field, text) if text else ""


def _count(field: str, value: int) -> int:
    if value > COUNT_MAX:
        _refuse("out_of_range", field, value, "no fleet has as many")
    return value


def _rate(field: str, value: float) -> float:
    if not math.isfinite(value):
        _refuse("not_finite", field, value, "send a finite number, or leave out what is unknown")
    if value < 0.0:
        _refuse("negative", field, value, "must be >= 0")
    if value > RATE_MAX:
        _refuse("out_of_range", field, value, f"at most {RATE_MAX:g} is believed")
    return value


def _at_most(where: str, known: Mapping[str, Any], part: str, whole: str) -> None:
    if part in known and whole in known and known[part] > known[whole]:
        _refuse("over_total", f"{where}.{part}", known[part], f"more than {whole}, which is {known[whole]}")


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
        parts = None
    if not usable or parts is None or parts.username or parts.query or parts.fragment or not _is_name(url):
        _refuse(
            "bad_url", "data_url", url, "send http://host:port or https://host:port, without user, query or fragment"
        )
