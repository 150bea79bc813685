"""Runs one drill against a fleet of its own: load, fault, rollback, evidence.

The safety lever is a file: while it exists no drill starts and a running one is broken off. A drill is also broken off
when most requests fail that it never meant to hurt. Whatever happens, every undo runs and every process ends.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Sequence
from pathlib import Path

import msgspec

from chaos.drill import PHASE_MIN_S, Drill, limit_per_min, topology
from chaos.engine.driver import Stats
from chaos.evidence import Evidence, Facts, Scrape
from chaos.faults.undo import Undo
from chaos.fleet import Fleet, get, live_clusters
from chaos.history import Record
from chaos.load import Load, LoadPlan
from chaos.members import Router
from chaos.report import Journal
from chaos.scraping import Scraper, read_logs
from chaos.stage import CONTROL_MODEL, EXPERIMENT_MODEL, Stage
from gir.clock import Clock

SCRAPE_S = 0.1
CONTROL_RPS = 4.0
RECOVERY_S = 120.0
"""Patience, at scale 1, with the fleet's recovery after the fault is mended."""
DEED_S, DEED_SCALED_S = 180.0, 600.0
"""Patience with a fault or its mending, beside what grows with the scale."""
READY_S = 0.1
"""How often readiness is asked for, as a load balancer does."""
QUIET_S = 3.0
FAILING_WINDOW = 30
FAILING_SHARE_MAX = 0.5


class BrokenOffError(Exception):
    """A stop condition was met."""


class Run:
    """One run of a drill."""

    def __init__(self, drill: Drill, *, scale: float, clock: Clock, journal: Journal, lever: Path) -> None:
        self._drill = drill
        self._clock = clock
        self._journal = journal
        self._lever = lever
        self._facts = Facts(drill=drill.id, scale=scale, victims=drill.victims)
        self._undo = Undo()
        self._scrapes: list[Scrape] = []
        self._scraper = Scraper((), clock)
        self._control_ends: deque[bool] = deque(maxlen=FAILING_WINDOW)

    def run(self) -> Evidence:
        """The whole drill, fleet and all. ChildError when the fleet does not start."""
        if self._lever.exists():
            raise BrokenOffError(f"the safety lever {self._lever} is engaged: remove it to run drills")
        self._journal.note("fleet starting")
        with Fleet.start(topology(self._drill, self._facts.scale)) as fleet:
            self._journal.note("fleet serving", routers=len(fleet.routers), clusters=len(fleet.clusters))
            with asyncio.Runner() as runner:
                return runner.run(self._drive(fleet))

    async def _drive(self, fleet: Fleet) -> Evidence:
        experiment = self._load(fleet, EXPERIMENT_MODEL, "experiment", self._drill.rps, seed=1)
        control = self._load(fleet, CONTROL_MODEL, "control", CONTROL_RPS, seed=2)
        self._scraper = Scraper(fleet.routers, self._clock)
        if self._drill.limited:
            self._facts.figures["limit_per_min"] = limit_per_min(self._drill, self._facts.scale)
        await self._scrape()
        async with asyncio.TaskGroup() as group:
            sending = [group.create_task(load.run()) for load in (experiment, control)]
            watching = [group.create_task(self._scrape_for_ever())]
            if self._drill.routers > 1:
                watching.append(group.create_task(self._balance(fleet, (experiment, control))))
            try:
                await self._phases(Stage(fleet, self._facts, self._clock, self._undo), experiment)
            except BrokenOffError as error:
                self._facts.stopped = str(error)
                self._journal.note("broken off", why=str(error))
            finally:
                await asyncio.to_thread(self._undo.mend_all)
                experiment.stop()
                control.stop()
                _ = await asyncio.wait(sending)
                for task in watching:
                    task.cancel()
        await self._settle(fleet)
        self._journal.note("evidence complete", requests=len(experiment.records) + len(control.records))
        return Evidence(self._facts, experiment.records, control.records, self._scrapes)

    async def _phases(self, stage: Stage, experiment: Load) -> None:
        drill = self._drill
        stage.mark("start")
        await self._phase(drill.before_s)
        self._choose_victim(stage, experiment)
        self._journal.note("fault", victims=self._facts.victims)
        stage.mark("fault")
        await self._deed(drill.fault(stage))
        await self._phase(drill.during_s)
        self._journal.note("heal")
        stage.mark("heal")
        await self._deed(drill.heal(stage))
        await self._recovery(stage.fleet)
        self._journal.note("recovered")
        stage.mark("recovered")
        await self._phase(drill.after_s)
        stage.mark("end")

    async def _deed(self, deed: Awaitable[None]) -> None:
        """Do something to the fleet, but not for ever."""
        try:
            async with asyncio.timeout(DEED_S + DEED_SCALED_S * self._facts.scale):
                await deed
        except TimeoutError:
            raise BrokenOffError("what was to be done to the fleet did not come to an end") from None

    def _choose_victim(self, stage: Stage, experiment: Load) -> None:
        """Hurt the busiest of equal clusters: losing one that nobody uses would prove nothing."""
        if self._drill.proxied or len(self._facts.victims) != 1:
            return
        busy = Counter(record.cluster for record in experiment.records if record.cluster in stage.fleet.clusters)
        if busy:
            self._facts.victims = (busy.most_common(1)[0][0],)
            stage.signals.allow(stage.victim_pids)

    async def _phase(self, duration_s: float) -> None:
        """Let time pass, watching the stop conditions."""
        end_s = self._clock.monotonic_s() + max(PHASE_MIN_S, duration_s * self._facts.scale)
        while (left_s := end_s - self._clock.monotonic_s()) > 0:
            self._check()
            await self._clock.sleep_s(min(SCRAPE_S, left_s))

    async def _recovery(self, fleet: Fleet) -> None:
        """Wait until the router places on every cluster again."""
        give_up_s = self._clock.monotonic_s() + RECOVERY_S * self._facts.scale + 10.0
        while not await asyncio.to_thread(_all_live, fleet):
            self._check()
            if self._clock.monotonic_s() > give_up_s:
                raise BrokenOffError("the fleet did not recover after the fault was mended")
            await self._clock.sleep_s(SCRAPE_S)

    def _check(self) -> None:
        if self._lever.exists():
            raise BrokenOffError(f"the safety lever {self._lever} was engaged")
        watched = len(self._control_ends) == FAILING_WINDOW and not self._drill.control_may_fail
        if watched and sum(self._control_ends) < FAILING_SHARE_MAX * FAILING_WINDOW:
            raise BrokenOffError("most requests of the control group fail: the fault reaches beyond its victim")

    def _load(self, fleet: Fleet, model: str, key: str, rps: float, *, seed: int) -> Load:
        names = self._drill.classes if self._drill.classes and key == "experiment" else (key,)
        plan = LoadPlan(
            url=fleet.router_url,
            more_urls=tuple(router.url for router in fleet.routers[1:]),
            rps=rps,
            duration_s=1e9,
            models=(model,),
            keys=tuple((name, self._secret(fleet, name)) for name in names),
            stream_share=self._drill.stream_share,
            within_s=self._drill.patience_s,
            users=self._drill.users if key == "experiment" else 0,
            leave_share=self._drill.leave_share if key == "experiment" else 0.0,
            seed=seed,
        )
        self._facts.settings[key] = msgspec.json.encode(msgspec.structs.replace(plan, keys=())).decode()
        return Load(plan, self._clock, self._control_ended if key == "control" else None)

    def _control_ended(self, record: Record) -> None:
        self._control_ends.append(record.ok)

    def _secret(self, fleet: Fleet, key: str) -> str:
        """What clients of a group identify themselves with."""
        if fleet.issuer is not None and key == "experiment":
            return fleet.issuer.token(self._drill.issuer[0], tenant=key)
        return fleet.keys[key]

    async def _scrape(self) -> Scrape | None:
        scrape = await asyncio.to_thread(self._scraper.look)
        if scrape is not None:
            self._scrapes.append(scrape)
        return scrape

    async def _scrape_for_ever(self) -> None:
        while True:
            await self._scrape()
            await self._clock.sleep_s(SCRAPE_S)

    async def _balance(self, fleet: Fleet, loads: Sequence[Load]) -> None:
        """Do what a load balancer does: send nothing new to a router that is not ready."""
        while True:
            out = {router.url for router in fleet.routers if not await asyncio.to_thread(_ready, router)}
            for load in loads:
                load.out = out
            await self._clock.sleep_s(READY_S)

    async def _settle(self, fleet: Fleet) -> None:
        """Look until nothing is under way, then once more: the last scrape shows the fleet at rest."""
        give_up_s = self._clock.monotonic_s() + QUIET_S
        while self._clock.monotonic_s() < give_up_s:
            scrape = await self._scrape()
            if scrape is not None and not scrape.samples.get("gir_requests_in_flight"):
                break
            await self._clock.sleep_s(SCRAPE_S)
        await self._scrape()
        decisions, self._facts.log = read_logs(fleet.routers, self._clock)
        self._facts.requests_logged = len(decisions)
        self._facts.decisions = decisions if self._drill.limited else {}
        for cluster in fleet.clusters.values():
            for pod in cluster.pods:
                status, body = await asyncio.to_thread(get, f"{pod['url']}/debug/stats")
                if status == 200:
                    self._facts.engines[pod["name"]] = msgspec.json.decode(body, type=Stats)


def _ready(router: Router) -> bool:
    return get(f"{router.admin_url}/readyz")[0] == 200


def _all_live(fleet: Fleet) -> bool:
    """Whether every router is ready and places on every cluster."""
    return all(_ready(router) and set(fleet.clusters) <= live_clusters(router.admin_url) for router in fleet.routers)
