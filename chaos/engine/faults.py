"""Faults to order: what may be installed on a pod, and which request each one hits.

A fault says what goes wrong (`kind` and its parameters) and how often (`skip`, `count`, `probability` with its own
`seed`, `path`). Installed faults are asked in order and the first that fires decides, so a drill is repeatable.
"""

import random
from typing import Annotated, Literal

import msgspec

Kind = Literal[
    "hang",
    "reset",
    "status",
    "hold_first_token",
    "cut",
    "error_event",
    "malformed",
    "slow",
    "metrics",
    "unhealthy",
    "restart",
]
HITS_REQUESTS = frozenset({"hang", "reset", "status", "hold_first_token", "cut", "error_event", "malformed"})
"""Kinds that befall one request; the others are states of the pod while they are installed."""

Positive = Annotated[float, msgspec.Meta(gt=0.0)]
NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class Fault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault. Fields that its kind does not name are ignored.

    hang: never answers, or not before `delay_s`. reset: RST before the head. status: answers `status` with
    `retry_after_s`. hold_first_token: the head comes, the first token `delay_s` later than it would.
    cut: after `after_chunks` events (a random number up to it when `random_chunks`) the connection ends `how`:
    `rst`, `fin` (an answer without framing simply ends), `truncate` (a chunked answer stops inside a chunk).
    error_event: an error inside the 200 after `after_chunks` events. malformed: then comes something that is no event,
    `how`: `utf8`, `html`, `long_line`, `empty`. slow: first tokens `ttft` times and gaps `itl` times as long.
    metrics: `how`: `slow` (by `delay_s`), `status` (`status`), `missing` (404), `renamed` (names of an unknown
    engine), `garbage`. unhealthy: /health answers 503. restart: connections are reset, counters and caches lost, the
    port closed for `delay_s`.
    """

    kind: Kind
    name: str = ""
    path: str = ""
    """Only requests whose path begins with it."""
    skip: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Requests to let pass first."""
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Requests to hit; None for all."""
    probability: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 1.0
    seed: int = 0
    status: Annotated[int, msgspec.Meta(ge=300, le=599)] = 500
    retry_after_s: float | None = None
    delay_s: NonNegative = 0.0
    after_chunks: Annotated[int, msgspec.Meta(ge=0)] = 0
    random_chunks: bool = False
    how: str = ""
    ttft: Positive = 1.0
    itl: Positive = 1.0

    def __post_init__(self) -> None:
        choices = {
            "cut": ("rst", "fin", "truncate"),
            "malformed": ("utf8", "html", "long_line", "empty"),
            "metrics": ("slow", "status", "missing", "renamed", "garbage"),
        }.get(self.kind)
        if choices and self.how not in choices:
            raise ValueError(f"how is {self.how!r}: a {self.kind} fault needs one of {', '.join(choices)}")


class _Installed:
    __slots__ = ("chance", "fault", "hits", "seen")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.chance = random.Random(fault.seed)
        self.seen = 0
        self.hits = 0

    def fires(self, path: str) -> bool:
        fault = self.fault
        if not path.startswith(fault.path) or (fault.count is not None and self.hits >= fault.count):
            return False
        self.seen += 1
        if self.seen <= fault.skip or self.chance.random() >= fault.probability:
            return False
        self.hits += 1
        return True


class Faults:
    """The faults installed on one pod."""

    __slots__ = ("_installed",)

    def __init__(self) -> None:
        self._installed: list[_Installed] = []

    def install(self, fault: Fault) -> None:
        """Add a fault behind those there are; one with the same non-empty name is replaced."""
        if fault.name:
            self.remove(fault.name)
        self._installed.append(_Installed(fault))

    def remove(self, name: str = "") -> int:
        """Remove the faults called `name`, or all; says how many."""
        before = len(self._installed)
        self._installed = [one for one in self._installed if name and one.fault.name != name]
        return before - len(self._installed)

    def draw(self, path: str) -> Fault | None:
        """The fault that befalls this request, if any, its random choices made."""
        for one in self._installed:
            if one.fault.kind in HITS_REQUESTS and one.fires(path):
                if one.fault.random_chunks:
                    chunks = one.chance.randint(0, one.fault.after_chunks)
                    return msgspec.structs.replace(one.fault, after_chunks=chunks)
                return one.fault
        return None

    def state(self, kind: Kind, path: str = "") -> Fault | None:
        """The installed fault of a kind that is a state of the pod; counts as hit."""
        return next((one.fault for one in self._installed if one.fault.kind == kind and one.fires(path)), None)

    def rows(self) -> list[dict[str, object]]:
        """Every installed fault with how often it was asked and how often it hit."""
        return [{**msgspec.structs.asdict(one.fault), "seen": one.seen, "hits": one.hits} for one in self._installed]
