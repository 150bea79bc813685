"""What flow control knows of a request, and what it says about it. Values only."""

import enum
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, RequestId, TenantId
from gir.model.request import Criticality, InferenceRequest, Principal

RETRY_S_MIN, RETRY_S_MAX, RETRY_S_UNKNOWN = 1.0, 60.0, 5.0


class Room(NamedTuple):
    """Slots of the clusters one request may go to. Absent capacity is zero."""

    slots_total: int
    slots_free: int


class State(enum.Enum):
    """Where a ticket is."""

    NEW = "new"
    WAITING = "waiting"
    RESERVED = "reserved"
    """May go; the placement has not counted it yet, so flow control holds its slot."""
    RUNNING = "running"
    GONE = "gone"


class Ticket:
    """One request in flow control. `room` is asked again whenever its turn may have come."""

    __slots__ = (
        "arrived_s", "body_bytes", "criticality", "deadline_s", "ends_s", "pool", "request_id", "room", "roomless_s",
        "share", "state", "tenant", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        *,
        request_id: RequestId,
        pool: ModelId,
        tenant: TenantId,
        criticality: Criticality,
        room: Callable[[], Room],
        tokens: int = 1,
        body_bytes: int = 0,
        share: float = 1.0,
        deadline_s: float = float("inf"),
    ) -> None:
        """`tokens` is the work it brings, for fair sharing; `share` its tenant's weight; times are monotonic."""
        self.request_id = request_id
        self.pool = pool
        self.tenant = tenant
        self.criticality = criticality
        self.room = room
        self.tokens = max(1, tokens)
        self.body_bytes = body_bytes
        self.share = max(share, 1e-3)
        self.deadline_s = deadline_s
        self.arrived_s = 0.0
        self.ends_s = deadline_s
        """When it stops waiting."""
        self.roomless_s: float | None = None
        """Since when no cluster may serve it, full or not."""
        self.state = State.NEW

    def __repr__(self) -> str:
        return f"<Ticket {self.request_id} {self.criticality.label} {self.state.value}>"


def ticket_of(request: InferenceRequest, room: Callable[[], Room], *, output_tokens: int, share: float = 1.0) -> Ticket:
    """The ticket of `request`; `output_tokens` is the expected length of its answer."""
    return Ticket(
        request_id=request.request_id,
        pool=request.model,
        tenant=request.principal.tenant,
        criticality=request.criticality,
        room=room,
        tokens=request.prompt_tokens_estimate + output_tokens,
        body_bytes=request.body_bytes,
        share=share,
        deadline_s=request.deadline_s,
    )


def class_of(principal: Principal, claimed: bytes | None) -> Criticality:
    """Class of a request: what its header claims if the caller is trusted, else the principal's default.

    `claimed` is a class name or the Inference Extension's integer priority. Never above the principal's ceiling; a
    value that says nothing counts as no claim.
    """
    wanted = principal.criticality_default
    if claimed is not None and principal.trusted:
        text = claimed.strip().decode("latin-1").upper()
        if text in Criticality.__members__:
            wanted = Criticality[text]
        elif text.removeprefix("-").isdecimal() and len(text) < 10:
            wanted = Criticality(max(-1, min(1, int(text))))
    return min(wanted, principal.criticality_max)


class Reason(enum.Enum):
    """Why a request was not let through: error kind and what the client reads."""

    SHED = (ErrorKind.OVERLOADED, "the fleet is busy and sheddable requests are the first to go")
    QUEUE_FULL = (ErrorKind.OVERLOADED, "the fleet is busy and the queue is full")
    EVICTED = (ErrorKind.OVERLOADED, "the fleet is busy and a more urgent request took the place in the queue")
    WAITED = (ErrorKind.OVERLOADED, "the fleet stayed busy for the longest time a request may wait")
    NO_CAPACITY = (ErrorKind.NO_CAPACITY, "no cluster that may serve this request has any slots")
    DEADLINE = (ErrorKind.DEADLINE_EXCEEDED, "the request's deadline passed while it waited for a slot")
    SHUTTING_DOWN = (ErrorKind.SHUTTING_DOWN, "this router is shutting down")
    DOOR_SHUT = (ErrorKind.OVERLOADED, "too many requests are in this router already")


class Action(enum.Enum):
    """What becomes of an arriving request."""

    ADMIT = "admit"
    WAIT = "wait"
    SHED = "shed"


class Refused(msgspec.Struct, frozen=True):
    """A ticket that will not be served, and why."""

    ticket: Ticket
    reason: Reason
    retry_after_s: float

    def error(self) -> RequestError:
        """The error its client gets; the class is named in message and reason."""
        kind, text = self.reason.value
        label = self.ticket.criticality.label
        return RequestError(
            kind,
            f"{text} (class {label})",
            retry_after_s=self.retry_after_s if kind.value.retry_after else None,
            reason=f"{self.reason.name.lower()}:{label}",
        )


class Verdict(msgspec.Struct, frozen=True):
    """Answer to an arrival, and what it did to others: `admitted` may go now, `refused` will not be served."""

    action: Action
    admitted: tuple[Ticket, ...] = ()
    refused: tuple[Refused, ...] = ()


class Changes(msgspec.Struct, frozen=True):
    """What time or a release did to waiting tickets."""

    admitted: tuple[Ticket, ...] = ()
    refused: tuple[Refused, ...] = ()
