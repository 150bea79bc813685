"""What one request holds of the limits, and what its client is told about them."""

import math
from collections.abc import Iterable

from gir.admit.lease import RateLease
from gir.admit.rules import Counters, RateUse, SlotUse
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, RequestId
from gir.model.policy import LimitRule
from gir.model.request import InferenceRequest, Usage

Header = tuple[bytes, bytes]
HEADER_NAMES = {
    kind: tuple(f"x-ratelimit-{part}-{kind}".encode() for part in ("limit", "remaining", "reset"))
    for kind in ("requests", "tokens")
}


class Reservation:
    """Units and places of one request. Settled exactly once; settling again does nothing."""

    __slots__ = ("model", "prompt_bytes", "request_id", "settled", "slots", "spent")

    def __init__(
        self,
        request_id: RequestId,
        model: ModelId,
        prompt_bytes: int,
        spent: list[tuple[RateUse, int, int]],
        slots: tuple[SlotUse, ...],
    ) -> None:
        self.request_id = request_id
        self.model = model
        self.prompt_bytes = prompt_bytes
        self.spent = spent
        """(counter, units, stamp) of each rate."""
        self.slots = slots
        self.settled = False

    def __repr__(self) -> str:
        units = ", ".join(f"{use.lease.key} {units}" for use, units, _ in self.spent)
        return f"<Reservation {self.request_id} {'settled' if self.settled else 'open'}: {units}>"


class LimitExceeded(RequestError):  # noqa: N818 (reads as what happened)
    """A limit said no: 429 naming the rule, with the headers that tell a client how much of what is left."""

    def __init__(
        self, message: str, *, rule: LimitRule, kind: str, retry_after_s: float, headers: list[Header]
    ) -> None:
        super().__init__(
            ErrorKind.RATE_LIMITED, message, retry_after_s=retry_after_s, reason=f"limit:{rule.name}:{kind}"
        )
        self.rule = rule.name
        self.headers = headers


def tokens_of(rule: LimitRule, prompt_tokens: int, output_tokens: int) -> int:
    """Units of a token limit: input tokens plus weighted output tokens, rounded up."""
    return math.ceil(prompt_tokens + rule.output_token_weight * output_tokens)


def tokens_used(rule: LimitRule, usage: Usage) -> int:
    """The same, of what an engine counted."""
    return tokens_of(rule, usage.prompt_tokens, usage.completion_tokens)


def explained(
    counters: Counters, request: InferenceRequest, prompt_tokens: int, output_tokens: int
) -> list[dict[str, object]]:
    """Every counter of `request`: what is left of how much, what it asks for, and whether there is room. Makes none."""
    rows: list[dict[str, object]] = []
    for rule, kind, key, limit in counters.named(request):
        asks = min(tokens_of(rule, prompt_tokens, output_tokens), limit) if kind == "tokens" else 1
        slot, rate = counters.slots.get(key), counters.rates.get(key)
        left = limit
        if slot is not None:
            left = slot.free + slot.held - slot.used
        elif rate is not None:
            left = rate.left
        row = {"limit": rule.name, "counter": key, "kind": kind, "of": limit, "left": left, "asks": asks}
        rows.append({**row, "room": left >= asks})
    return rows


def limit_headers(rates: Iterable[RateUse], now_s: float, *, refused: RateLease | None = None) -> list[Header]:
    """`x-ratelimit-*` of the tightest counter of each kind, in the form the OpenAI clients know."""
    headers: list[Header] = []
    for kind, lease in tightest_of(rates, refused).items():
        limit, remaining, reset = HEADER_NAMES[kind]
        headers += (
            (limit, b"%d" % lease.rate.limit),
            (remaining, b"%d" % (0 if lease is refused else lease.left)),
            (reset, duration(lease.reset_at_s - now_s)),
        )
    return headers


def tightest_of(rates: Iterable[RateUse], refused: RateLease | None = None) -> dict[str, RateLease]:
    """The counter of each kind that is nearest to its limit; `refused`, if given, for its kind."""
    tightest: dict[str, RateLease] = {}
    for use in rates:
        kind, lease = use.kind, use.lease
        held = tightest.get(kind)
        if held is None or lease is refused or (held is not refused and lease.left < held.left):
            tightest[kind] = lease
    return tightest


def duration(seconds: float) -> bytes:
    """A span as OpenAI writes it: `120ms`, `1.5s`, `2m0s`; never negative."""
    if seconds < 1.0:
        return b"%dms" % max(0, math.ceil(seconds * 1000))
    minutes, tenths = divmod(math.ceil(seconds * 10), 600)
    rest = b"%d.%ds" % divmod(tenths, 10) if tenths % 10 else b"%ds" % (tenths // 10)
    return b"%dm%b" % (minutes, rest) if minutes else rest
