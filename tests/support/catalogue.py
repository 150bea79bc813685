"""One fault of the catalogue, in a simulated fleet of equal clusters under steady load, and what came of it."""

from collections.abc import Callable, Sequence

import msgspec

from chaos.sim.client import Ask
from chaos.sim.cluster import ClusterSpec
from chaos.sim.plan import START_S, WARM_S, Fault, plan_of
from chaos.sim.world import World, drop_pending
from gir.model.policy import FlowPolicy, HealthPolicy

FAULT_S = START_S + WARM_S + 20.0
RPS = 10.0
VICTIM = "eu-1"
NAMES = (VICTIM, "eu-2", "us-1")
MODEL = "llama"
HEALTH = HealthPolicy(ejection_max_s=20.0, holddown_max_s=10.0)
"""As delivered, but for what only lengthens the wait for the end of a run."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked around the fault."""

    rps: float = RPS
    tenants: tuple[str, ...] = ("plain",)
    """In turn."""
    tokens: int = 16
    users: int = 0
    """End users in turn; 0 names none."""
    streams_only: bool = False
    """Otherwise one in four wants its answer whole."""


LOAD = Load()
FLOW = FlowPolicy(queue_max=500)


class Step(msgspec.Struct, frozen=True):
    """One line of the trace."""

    at_s: float
    who: str
    what: str
    rest: tuple[str, ...]


class Lived:
    """A run that is over. Times are seconds after the fault."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.findings = world.observed.failed
        self.steps = [_step(line) for line in world.observed.lines or ()]

    def __repr__(self) -> str:
        return f"<Lived {self.world.plan.faults} {len(self.steps)} steps>"

    def find(self, what: str, *words: str) -> list[Step]:
        """Steps of a kind that hold all of `words`."""
        return [step for step in self.steps if step.what == what and set(words) <= set(step.rest)]

    def placements(self, cluster: str, from_s: float, until_s: float) -> list[float]:
        """When requests were sent to a cluster."""
        return [step.at_s for step in self.find("place", cluster) if from_s <= step.at_s < until_s]

    @property
    def work_before(self) -> int:
        """Placements on the victim in the ten seconds before the fault: without any it would prove nothing."""
        return len(self.placements(VICTIM, -10.0, 0.0))

    def last_placement_s(self, until_s: float) -> float:
        """On the victim, while the fault lasts; 0 when there was none."""
        return max(self.placements(VICTIM, 0.0, until_s), default=0.0)

    def first_status_s(self, status: str, cluster: str = VICTIM) -> float | None:
        """When a cluster was first called something, after the fault."""
        return next((s.at_s for s in self.find("status", cluster) if s.at_s > 0 and s.rest[2] == status), None)

    @property
    def failed_before_token(self) -> list[str]:
        """PTE: what clients saw instead of an answer, whenever they asked."""
        assert self.world.crowd is not None
        return [f"{told.status} broke={told.broke}" for told in self.world.crowd.told if told.status != 200]

    def ended(self, outcome: str) -> list[float]:
        """When requests ended in a way."""
        return [step.at_s for step in self.find("end", outcome)]

    def moved(self) -> list[float]:
        """When requests that waited for the victim's first token gave up on it."""
        return [step.at_s for step in self.find("attempt", VICTIM, "local_fault") if step.at_s > 0]


def _step(line: str) -> Step:
    at_s, who, *rest = line.split(" ")
    if who in ("fault", "heal"):
        return Step(float(at_s) - FAULT_S, "world", who, tuple(rest))
    return Step(float(at_s) - FAULT_S, who, rest[0], tuple(rest[1:]))


def live(
    kind: str,
    *,
    lasts_s: float = 40.0,
    health: HealthPolicy = HEALTH,
    models: Sequence[tuple[str, ...]] = ((MODEL,),) * len(NAMES),
    other: int = -1,
    targets: Sequence[int] = (0,),
    load: Load = LOAD,
    slots: int = 16,
    flow: FlowPolicy = FLOW,
    spoil: Callable[[World], None] = lambda _: None,
) -> Lived:
    """A whole life with one fault, on the first cluster unless `targets` says otherwise; `spoil` may watch or hurt the
    world before it begins."""
    drawn = plan_of(1, clusters=2, faults=frozenset({kind}))
    plan = msgspec.structs.replace(
        drawn,
        routers=1,
        clusters=tuple(
            ClusterSpec(
                name=name, region=name[:2], tier="reserved", models=served, pods=2, slots=slots, pace=1.0, queue_max=50
            )
            for name, served in zip(NAMES, models, strict=True)
        ),
        policy=msgspec.structs.replace(drawn.policy, health=health, flow=flow, limits=()),
        faults=tuple(Fault(kind=kind, at_s=FAULT_S, lasts_s=lasts_s, target=target, other=other) for target in targets),
        asks=(),
        safety_s=20.0 + lasts_s,
        shared_store=False,
        core=-1,
    )
    world = World(msgspec.structs.replace(plan, asks=_asks(load, lasts_s)))
    world.observed.lines = []
    # The victim is the nearest, so most of the traffic goes there.
    delays = {(VICTIM, "router-0"): 0.002} | {(name, "router-0"): 0.004 for name in NAMES[1:]}
    world._delays |= delays
    spoil(world)
    world.live()
    drop_pending(world)
    return Lived(world)


def _asks(load: Load, lasts_s: float) -> tuple[Ask, ...]:
    """Requests from ten seconds before the fault until ten seconds after its end."""
    return tuple(
        Ask(
            at_s=FAULT_S - 10.0 + number / load.rps,
            router=0,
            tenant=load.tenants[number % len(load.tenants)],
            model=MODEL,
            stream=load.streams_only or number % 4 > 0,
            prompt_bytes=400,
            tokens=load.tokens,
            user=f"user-{number % load.users}" if load.users else "",
        )
        for number in range(int((20.0 + lasts_s) * load.rps))
    )


__all__ = ["FAULT_S", "HEALTH", "MODEL", "VICTIM", "Lived", "Load", "live"]
