"""What operators said at run time and every router must heed, as one frozen document.

It stands beside the policy: drains and pinned weights, canaries with their stage and verdict, changed limits. Each
order remembers what it was said *of* (a `mark` of the policy's words), so that a policy which says something new about
that cluster or rule is newer than the order, on every router and after every restart.

Times are Unix seconds: they are read by people and by other hosts, and decide nothing where the store can.
"""

import hashlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from gir.model.policy import CanaryRule, ClusterPolicy
from gir.model.policy.base import LimitCount, NonNegative, Section, Share

BYTES_MAX = 256 * 1024
"""Largest document: some hundreds of orders. A change that would make a larger one is refused."""
_MARK_CHARS = 12

Index = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
IntentName = Literal["serve", "drain", "maintenance"]
CanaryStateName = Literal["running", "promoted", "aborted"]


class ClusterOrder(Section, frozen=True, kw_only=True):
    """What is wanted of one cluster. None: as the policy says."""

    intent: IntentName | None = None
    weight: Share | None = None
    of: str = ""
    """Mark of the policy's entry it was said of; '' when there was none."""
    by: str
    at_unix_s: NonNegative


class CanaryOrder(Section, frozen=True, kw_only=True):
    """Where one canary stands. A run never goes back to `running`: to start again is another run."""

    rule: CanaryRule | None = None
    """The whole rule when the policy has none of that name."""
    of: str
    """Mark of the rule it was said of."""
    run: Index
    state: CanaryStateName = "running"
    stage: Index = 0
    """Position in the plan that some router's guard has reached."""
    reason: str = ""
    began_unix_s: NonNegative
    by: str
    at_unix_s: NonNegative


class LimitOrder(Section, frozen=True, kw_only=True):
    """Other numbers for one limit. None: the policy's."""

    requests_per_min: LimitCount | None = None
    tokens_per_min: LimitCount | None = None
    concurrency_max: LimitCount | None = None
    by: str
    at_unix_s: NonNegative

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers it sets, by field of the limit."""
        named = {name: getattr(self, name) for name in ("requests_per_min", "tokens_per_min", "concurrency_max")}
        return {name: number for name, number in named.items() if number is not None}


class Orders(Section, frozen=True, kw_only=True):
    """The document."""

    format: Literal[1] = 1
    """A router that does not know the format refuses the document and keeps what it has."""
    clusters: Mapping[str, ClusterOrder] = {}
    canaries: Mapping[str, CanaryOrder] = {}
    limits: Mapping[str, LimitOrder] = {}

    def __bool__(self) -> bool:
        return bool(self.clusters or self.canaries or self.limits)


def encode(orders: Orders) -> bytes:
    """The document's text, the same for the same orders. Raises ValueError when it is too large."""
    text = msgspec.json.encode(orders, order="deterministic")
    if len(text) > BYTES_MAX:
        raise ValueError(f"operators' orders would take {len(text)} bytes of {BYTES_MAX}; remove old canaries")
    return text


def decode(text: bytes) -> Orders:
    """Orders of a text; an empty one holds none. Raises ValueError: it is taken whole or not at all."""
    if not text:
        return Orders()
    if len(text) > BYTES_MAX:
        raise ValueError(f"{len(text)} bytes are more than the {BYTES_MAX} a document may have")
    orders = msgspec.json.decode(text, type=Orders)
    for name, order in orders.canaries.items():
        if order.rule is not None and order.rule.name != name:
            raise ValueError(f"canaries.{name}.rule.name is {order.rule.name!r}; it must be the key")
    return orders


def mark(section: Section | None) -> str:
    """Short mark of what a section of the policy says; '' for none.

    Fields at their defaults do not count, so that a release with more fields marks an old policy as before.
    """
    if section is None:
        return ""
    return hashlib.sha256(msgspec.json.encode(_said(section), order="deterministic")).hexdigest()[:_MARK_CHARS]


def heeded(order: ClusterOrder | None, entry: ClusterPolicy | None) -> ClusterOrder | None:
    """`order`, unless the policy has said something else of the cluster since."""
    return order if order is not None and order.of == mark(entry) else None


def _said(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_said(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _said(item) for key, item in value.items()}
    if not isinstance(value, msgspec.Struct):
        return value
    fields = msgspec.structs.fields(value)
    return {each.name: _said(held) for each in fields if (held := getattr(value, each.name)) != each.default}
