"""What a drill is: a hypothesis with figures, a fault, its mending, and the promises that are judged.

The five parts of a chaos experiment: steady state (promised in every drill, before and after), hypothesis, fault plan,
stop conditions (the runner's), rollback (every fault registers its undo before it acts).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from chaos.engine.faults import Fault
from chaos.evidence import Facts
from chaos.faults.process import ProcessFaults
from chaos.faults.undo import Undo
from chaos.fleet import Fleet, call
from chaos.members import Cluster
from chaos.promises import Promise
from chaos.topology import ClusterShape, KeyShape, PodShape, Topology
from gir.clock import Clock

EXPERIMENT_MODEL = "llama-70b"
CONTROL_MODEL = "control-70b"


class Stage:
    """What a drill's fault may touch: one cluster, the victim."""

    def __init__(self, fleet: Fleet, facts: Facts, clock: Clock, undo: Undo) -> None:
        self.fleet = fleet
        self.facts = facts
        self.clock = clock
        self._undo = undo
        self.signals = ProcessFaults(undo)
        self.signals.allow(self.victim.pids)

    @property
    def victim(self) -> Cluster:
        """The cluster under fault."""
        return self.fleet.cluster(self.facts.victim)

    @property
    def agent_pids(self) -> list[int]:
        """The victim's agent."""
        agent = self.victim.agent
        return [agent.pid] if agent is not None else []

    def mark(self, name: str) -> None:
        """Remember this moment."""
        self.facts.marks[name] = self.clock.monotonic_s()

    async def pause(self, duration_s: float) -> None:
        """Wait, scaled."""
        await self.clock.sleep_s(duration_s * self.facts.scale)

    @property
    def experiment_pods(self) -> list[dict[str, str]]:
        """Every pod but the control group's."""
        return [p for c in self.fleet.clusters.values() if c.shape.model == EXPERIMENT_MODEL for p in c.pods]

    async def order(self, fault: Fault, pods: Sequence[dict[str, str]]) -> None:
        """Install a fault on pods. RuntimeError when one refuses it, or when there is none."""
        if not pods:
            raise RuntimeError("the fault aims at no pod at all")
        body = msgspec.json.encode(fault)
        for pod in pods:
            url = f"{pod['url']}/debug/faults"
            self._undo.register(f"faults of {pod['name']}", lambda url=url: call("DELETE", url))  # type: ignore[misc]
            status, answer = await asyncio.to_thread(call, "POST", url, "", body)
            if status != 200:
                raise RuntimeError(f"{pod['name']} refused the fault: {status} {answer.decode(errors='replace')}")

    async def relieve(self, pods: Sequence[dict[str, str]]) -> None:
        """Remove every fault from pods."""
        for pod in pods:
            await asyncio.to_thread(self._undo.mend, f"faults of {pod['name']}")


Deed = Callable[[Stage], Awaitable[None]]


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """One drill. Durations are seconds at scale 1."""

    id: str
    title: str
    hypothesis: str
    fault: Deed
    heal: Deed
    promises: tuple[Promise, ...]
    victim: str = "eu-1"
    before_s: float = 20.0
    during_s: float = 30.0
    after_s: float = 20.0
    rps: float = 20.0
    stream_share: float = 0.7


def topology(scale: float) -> Topology:
    """Three equal clusters for the experiment and one for the control group, every health setting scaled."""
    engine = PodShape(gpu="llama2-70b/h100-80gb/tp8", slots=16)
    clusters = [
        ClusterShape(name=name, region=region, model=EXPERIMENT_MODEL, pods=(engine, engine))
        for name, region in (("eu-1", "eu-west"), ("eu-2", "eu-west"), ("us-1", "us-east"))
    ]
    clusters.append(ClusterShape(name="control", region="us-east", model=CONTROL_MODEL, pods=(engine,)))
    seconds = {
        "beat_interval_s": 2.0,
        "suspect_after_s": 6.0,
        "dead_after_s": 15.0,
        "sweep_interval_s": 0.5,
        "probe_interval_s": 1.0,
        "probe_timeout_s": 0.5,
        "ejection_s": 10.0,
        "ramp_s": 30.0,
        "holddown_s": 2.0,
    }
    return Topology(
        clusters=tuple(clusters),
        keys=(KeyShape(id="experiment", tenant="experiment"), KeyShape(id="control", tenant="control")),
        time_scale=0.5,
        policy={
            "tiers": [{"name": "reserved", "price_per_slot_hour": 1.0}],
            "health": {name: round(value * scale, 4) for name, value in seconds.items()},
        },
    )
