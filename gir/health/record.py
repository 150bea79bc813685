"""One cluster's health: what its detectors say, put together, and where it stands on the way out and back.

    NEW ------> SERVING <------ RAMPING <--- HOLDING <--- PROVING <--- LOST
     \\-> RAMPING   |              |            |            |          ^ ^
                   +--------------+------------+------------+----------+ | any detector speaks against it
                                  ^------------------------------------- | its breaker alone did, and has closed

LOST until no detector objects, PROVING until enough beats and probes were good in a row, HOLDING for the hold-down,
then RAMPING. A breaker's ejection was itself the waiting time, so after it the ramp begins at once. A loss counts as a
flap only when work was lost; failing again during PROVING or HOLDING just starts that way anew.
"""

import enum
from typing import TYPE_CHECKING

from gir.health.breaker import Breaker, Gate
from gir.health.detector import BeatDetector, Beats
from gir.health.events import Cause
from gir.health.pool_breakers import PoolBreakers
from gir.health.pressure import Pressure
from gir.health.probe import Probes, ProbeState
from gir.health.ramp import holddown_s
from gir.health.view import names_of
from gir.model.beat import AgentHello, Condition
from gir.model.cluster import Intent, PoolState
from gir.model.ids import ModelId, TierName
from gir.model.orders import ClusterOrder, heeded
from gir.model.outcome import Attempt, AttemptResult
from gir.model.policy import ClusterPolicy, HealthPolicy

if TYPE_CHECKING:
    from gir.health.shown import Look


class Standing(enum.Enum):
    """Where a cluster is on the way out and back."""

    NEW = "new"
    SERVING = "serving"
    RAMPING = "ramping"
    LOST = "lost"
    PROVING = "proving"
    HOLDING = "holding"


UNKNOWN = ModelId("")
"""The model of an attempt that nobody named."""

WORKING = (Standing.SERVING, Standing.RAMPING)

RTT_STEP_SHARE = 0.1
RTT_STEP_S = 0.0005
"""The view's round trip follows the measured one in steps, or every probe would make a new view."""


class ClusterRecord:
    """Everything the registry knows of one cluster. Times are monotonic seconds."""

    __slots__ = (
        "_before_silence",
        "_breaker_alone",
        "_told",
        "beat_s",
        "beats",
        "breaker",
        "cause",
        "condition",
        "excused",
        "flaps",
        "hello",
        "hold_until_s",
        "intent",
        "last_resort",
        "look",
        "lost_s",
        "names",
        "offered",
        "pinned",
        "policy",
        "pool_breakers",
        "pools",
        "pressure",
        "probes",
        "quiet_until_s",
        "rtt_s",
        "silent_since_s",
        "since_s",
        "spared",
        "standing",
        "tier",
        "warnings",
    )

    def __init__(self, hello: AgentHello, policy: HealthPolicy, *, now_s: float) -> None:
        self.hello = hello
        self.policy = policy
        self.beats = BeatDetector(policy, now_s=now_s)
        self.probes = ProbeState(policy)
        self.breaker = Breaker(policy)
        self.pool_breakers = PoolBreakers(policy)
        self.pressure = Pressure()
        self.standing = Standing.NEW
        self.since_s = now_s
        """When `standing` began; while RAMPING, when the ramp began."""
        self.cause = Cause.NONE
        """Which detector objects now."""
        self.silent_since_s: float | None = None
        """Since when silence alone makes it lost; None while it is heard."""
        self.lost_s = now_s
        self.hold_until_s = 0.0
        self.flaps = 0
        self.spared = False
        """Lost together with too many others to be written off: SUSPECT for longer before DEAD."""
        self.excused = False
        """Everybody is silent, so silence is held against nobody."""
        self.last_resort = False
        """Nobody else is left for one of its models, so it stays usable whatever its health."""
        self.intent = Intent.SERVE
        self.pinned = 1.0
        self.tier = hello.tier
        self.condition = Condition.SERVING
        self.pools: dict[ModelId, PoolState] = {}
        self._told: tuple[PoolState, ...] = ()
        self.offered: frozenset[ModelId] = frozenset()
        """Every model and adapter its pools name."""
        self.names: frozenset[ModelId] = frozenset()
        """Models and adapters its pools with slots can serve."""
        self.warnings: tuple[str, ...] = ()
        self.beat_s: float | None = None
        self.rtt_s: float | None = None
        self.look: Look | None = None
        """As it was last published."""
        self.quiet_until_s = float("-inf")
        """Until then only an event can change it."""
        self._breaker_alone = False
        """Since the loss nothing but the breaker has objected."""
        self._before_silence = (Standing.NEW, now_s)
        """Standing and its begin when it fell silent."""

    def use_policy(self, policy: HealthPolicy) -> None:
        """Judge by `policy` from now on."""
        self.policy = self.beats.policy = self.probes.policy = self.breaker.policy = policy
        self.pool_breakers.use_policy(policy)

    def obey(self, entry: ClusterPolicy | None, order: ClusterOrder | None) -> None:
        """Take over what the policy says of the cluster, and what operators have said over it since."""
        self.intent, self.pinned = wanted(entry, order)
        self.tier = TierName(entry.tier) if entry and entry.tier else self.hello.tier

    def take_pools(self, pools: tuple[PoolState, ...]) -> bool:
        """Take over what a beat says of the pools; True if other models can be served than before."""
        if pools is self._told:
            return False
        self._told = pools
        self.pools = {pool.model: pool for pool in pools}
        self.offered = frozenset(names_of(pools))
        before = self.names
        self.names = frozenset(names_of(pool for pool in pools if pool.slots_total > 0))
        return self.names != before

    @property
    def objection(self) -> Cause:
        """The strongest detector that speaks against the cluster now; NONE if all are content."""
        if self.beats.state is Beats.GONE:
            return Cause.GOODBYE
        if self.probes.state is Probes.REFUSED:
            return Cause.PROBE
        if self.beats.state in (Beats.SUSPECT, Beats.DEAD):
            return Cause.BEATS
        if self.probes.state is Probes.MISSED:
            return Cause.PROBE
        return Cause.NONE if self.breaker.gate is Gate.CLOSED else Cause.BREAKER

    @property
    def silent(self) -> bool:
        """Lost for want of signals: the only loss that could be the observer's fault."""
        return self.silent_since_s is not None

    @property
    def heard(self) -> bool:
        """Its signals arrive, whatever its breaker thinks of the answers."""
        return self.beats.state is Beats.FRESH and not self.silent and self.doubtful

    @property
    def doubtful(self) -> bool:
        """Not gone by its own word: it may still answer."""
        return self.beats.state is not Beats.GONE and self.probes.state is not Probes.REFUSED

    @property
    def pathless(self) -> bool:
        """Neither probes nor requests get an answer from its address: trying it costs each request a timeout."""
        refused = self.breaker.gate is Gate.OPEN and self.breaker.origin is AttemptResult.LOCAL_FAULT
        return refused and self.probes.state is Probes.MISSED

    def lost_since(self, started_s: float) -> bool:
        """It was lost while something begun at `started_s` was under way, whose failure is then no further news."""
        return self.standing is Standing.LOST and started_s <= self.lost_s

    def alive_s(self, now_s: float) -> float:
        """When it was last heard of."""
        return now_s if self.silent_since_s is None else self.silent_since_s

    @property
    def working(self) -> bool:
        """It may get its share of new work."""
        return self.standing in WORKING and self.doors_open

    @property
    def doors_open(self) -> bool:
        """Neither operator nor agent wants it left alone."""
        return self.intent is Intent.SERVE and self.condition is Condition.SERVING and self.pinned > 0.0

    @property
    def proven(self) -> bool:
        """Enough good beats and probes in a row to be trusted with work again."""
        if self.beats.state is not Beats.FRESH or self.beats.streak < self.policy.recover_beats:
            return False
        return not self.policy.probe or self.probes.streak >= self.policy.recover_probes

    def assess(self, now_s: float, *, pardoned: bool = False) -> bool:
        """Let time speak to the detectors. True when what they say together has changed."""
        self.beats.tick(now_s, pardoned=pardoned)
        if not self.breaker.calm:
            self.breaker.tick(now_s)
            if self.breaker.unclaimed(now_s) and self.heard:
                self.breaker.waive(now_s)
        if self.pool_breakers:
            self.pool_breakers.tick(now_s, self.offered)
        before = (self.cause, self.silent)
        objection = self.objection
        if objection not in (Cause.BEATS, Cause.PROBE) or not self.doubtful:
            self.silent_since_s = None
        elif self.silent_since_s is None:
            self.silent_since_s = now_s
            self._before_silence = (self.standing, self.since_s)
        if self.excused and self.silent:
            objection = Cause.NONE if self.breaker.gate is Gate.CLOSED else Cause.BREAKER
        self.cause = objection
        return before != (self.cause, self.silent)

    def succeeded(self, attempt: Attempt, model: ModelId, now_s: float) -> bool:
        """An attempt for the base `model` was served. True when that changed what is published. Hot."""
        self.pressure.accepted(attempt.started_s, model)
        closed = self.breaker.success(attempt.started_s, now_s)
        if self.pool_breakers:
            closed |= self.pool_breakers.success(model, attempt.started_s, now_s)
        return closed

    def failed(self, attempt: Attempt, model: ModelId, now_s: float, *, resumed_s: float, draw: float) -> bool:
        """An attempt was not served. True when that changed what is published.

        `resumed_s`: end of the observer's last pause, before which local faults are no evidence.
        """
        started_s = attempt.started_s
        match attempt.result:
            case AttemptResult.BACKPRESSURE:
                self.pressure.push(attempt.retry_after_s, now_s, model)
                self._inconclusive(model, started_s)
                return True
            case AttemptResult.LOCAL_FAULT if started_s >= resumed_s and not self.lost_since(started_s):
                return self.breaker.failure(attempt.result, started_s, now_s, draw=draw)
            case AttemptResult.UPSTREAM_FAULT if self._is_of_pool(model):
                self.breaker.answered()
                return self.pool_breakers.failure(model, started_s, now_s, draw=draw)
            case AttemptResult.UPSTREAM_FAULT:
                return self.breaker.failure(attempt.result, started_s, now_s, draw=draw)
            case _:
                self._inconclusive(model, started_s)
                return False

    def may_take(self, model: ModelId, now_s: float) -> bool:
        """Ask before a dispatch. False: a breaker is half open and another request is already trying."""
        if self.on_probation:
            return self.breaker.claim(now_s)
        return self.pool_breakers.claim(model, now_s)

    def _is_of_pool(self, model: ModelId) -> bool:
        """Whether a bad answer accuses the pool of `model` alone: others are there, and the cluster is not itself on
        trial."""
        return model in self.pools and len(self.pools) > 1 and self.breaker.gate is Gate.CLOSED

    def _inconclusive(self, model: ModelId, started_s: float) -> None:
        self.breaker.inconclusive(started_s)
        self.pool_breakers.inconclusive(model, started_s)

    def step(self, now_s: float, *, among_the_first: bool) -> bool:
        """Move to where the detectors say it stands; True if it moved.

        `among_the_first`: nobody was serving before it, so there is nothing to ramp against.
        """
        before = self.standing
        if self.cause is not Cause.NONE:
            self._fall(now_s)
        else:
            self._rise(now_s, among_the_first=among_the_first)
        return self.standing is not before

    def ramp(self, now_s: float) -> None:
        """Begin a ramp now: work comes back to it for a reason other than health."""
        if self.standing is Standing.SERVING:
            self._stand(Standing.RAMPING, now_s)

    def excuse(self, now_s: float) -> None:
        """Its silence is the observer's fault: take back what was done about it. The breaker keeps its say."""
        if self.excused:
            return
        self.excused = True
        standing, since_s = self._before_silence
        if self.standing is Standing.LOST and standing is not Standing.NEW:
            self.standing, self.since_s = standing, since_s
            self.flaps -= standing in WORKING and self.flaps > 0
        self.assess(now_s)

    def accuse(self, now_s: float) -> None:
        """The observer hears again: from now on silence counts once more, from zero."""
        self.excused = False
        self.beats.reprieve(now_s)
        self.probes.reprieve()
        self.assess(now_s)

    def grant(self, gap_s: float, now_s: float) -> None:
        """The observer was away for `gap_s` seconds: to it, that time did not pass."""
        self.beats.grant(gap_s, now_s)
        self.probes.reprieve()
        if self.standing is Standing.RAMPING:
            self.since_s = min(now_s, self.since_s + gap_s)
        self.hold_until_s += gap_s

    @property
    def on_probation(self) -> bool:
        """Only its breaker objects, and that is half open: one request may go."""
        half_open = self.cause is Cause.BREAKER and self.breaker.gate is Gate.HALF_OPEN
        return half_open and self.standing is Standing.LOST and not self.last_resort

    def follow_rtt(self) -> bool:
        """Take over the measured round trip if it has moved enough; True if so."""
        new_s, old_s = self.probes.rtt_s, self.rtt_s
        if new_s is None or (old_s is not None and abs(new_s - old_s) <= max(RTT_STEP_S, RTT_STEP_SHARE * old_s)):
            return False
        self.rtt_s = new_s
        return True

    def rest(self) -> None:
        """Note until when time alone can change nothing, so that sweeps may pass the record by."""
        calm = self.standing is Standing.SERVING and self.cause is Cause.NONE and not self.silent
        if not calm or not self.pressure.calm or self.pool_breakers:
            self.quiet_until_s = float("-inf")
            return
        until_s = self.beats.heard_s + 2.0 * self.policy.beat_interval_s
        if self.flaps:
            until_s = min(until_s, self.since_s + self.policy.flap_window_s)
        self.quiet_until_s = min(until_s, self.breaker.forgiven_s) if self.breaker.ejections else until_s

    def _rise(self, now_s: float, *, among_the_first: bool) -> None:
        if self.standing is Standing.NEW and self.names:  # before it has a slot there is nothing to trust it with
            if among_the_first and self.beats.state is Beats.FRESH:
                self._stand(Standing.SERVING, now_s)
            elif self.proven:
                self._stand(Standing.RAMPING, now_s)
        if self.standing is Standing.LOST:
            # An ejection was waiting time enough.
            self._stand(Standing.RAMPING if self._breaker_alone else Standing.PROVING, now_s)
        if self.standing is Standing.PROVING and self.proven:
            self._stand(Standing.HOLDING, now_s)
            self.hold_until_s = now_s + holddown_s(self.flaps, self.policy)
        if self.standing is Standing.HOLDING and now_s >= self.hold_until_s:
            self._stand(Standing.RAMPING, now_s)
        if self.standing is Standing.RAMPING and now_s - self.since_s >= self.policy.ramp_s:
            self._stand(Standing.SERVING, now_s)
        if self.flaps and self.standing is Standing.SERVING and now_s - self.since_s >= self.policy.flap_window_s:
            self.flaps = 0

    def _fall(self, now_s: float) -> None:
        by_breaker = self.cause is Cause.BREAKER
        if self.standing in WORKING:
            self._breaker_alone = True
            self.lost_s = now_s
            # Somebody who leaves with a goodbye, or under maintenance, did not flap.
            self.flaps += self.cause is not Cause.GOODBYE and self.intent is not Intent.MAINTENANCE
        self._breaker_alone = self._breaker_alone and by_breaker
        # A newcomer has no work to lose; but one that was tried as the last resort and failed needs a probation.
        if self.standing is not Standing.LOST and (self.standing is not Standing.NEW or by_breaker):
            self._stand(Standing.LOST, now_s)

    def _stand(self, standing: Standing, now_s: float) -> None:
        self.standing = standing
        self.since_s = now_s


def wanted(entry: ClusterPolicy | None, order: ClusterOrder | None) -> tuple[Intent, float]:
    """Intent and pinned weight by the policy's entry (without one, the defaults) and an order that stands over it."""
    intent, pinned = (Intent(entry.intent), entry.weight) if entry else (Intent.SERVE, 1.0)
    order = heeded(order, entry)
    if order is not None:
        intent = intent if order.intent is None else Intent(order.intent)
        pinned = pinned if order.weight is None else order.weight
    return intent, pinned
