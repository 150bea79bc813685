"""The registry: the one writer of cluster health.

Everything that says something about a cluster comes in here (beats, probes, ends of attempts, an operator's wishes,
time itself) and one thing comes out: the `ClusterView` that a request takes with it. Every event ends in `reconcile`,
the one place where health changes; call it every `sweep_interval_s` as well, so that silence is heard.

All methods are synchronous and take the monotonic `now_s`. A call that comes much later than the sweep should have
proves that this process was paused. To the clusters that time did not pass: the gap is granted to all of them, what
began before it is no evidence, and agents that gave up on a paused router in the meantime are not blamed for it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gir.health import report
from gir.health.events import Cause, EventKind, HealthEvent
from gir.health.probe import Probes
from gir.health.quorum import CALM, Judgement, Member, choose_last_resorts, judge
from gir.health.record import UNKNOWN, ClusterRecord, Standing, wanted
from gir.health.shown import Look, look_of, redispatch, state_of
from gir.health.view import ViewBuilder
from gir.model.beat import AgentHello, BeatReport, Condition
from gir.model.cluster import ClusterStatus, ClusterView, Intent
from gir.model.ids import ClusterId, ModelId, TierName
from gir.model.orders import ClusterOrder
from gir.model.outcome import Attempt, AttemptResult
from gir.model.policy import HealthPolicy, PolicySnapshot

EVENTS_MAX = 1_000
"""Events kept until somebody takes them; the oldest go first."""
AGENTS_RETURN_S = 12.0
"""Agents that gave up on a paused router have tried again by then: their longest pause plus one unanswered Hello."""


class Registry:
    """Health of every cluster. `jitter()` draws from [0, 1) for the length of ejections."""

    __slots__ = ("_clusters_policy", "_dirty", "_events", "_first_beat_s", "_jitter", "_judgement", "_orders",
                 "_pardon_until_s", "_policy", "_records", "_resumed_s", "_seen_s", "_sweep_s", "_upheaval",
                 "_views")  # fmt: skip

    def __init__(self, policy: PolicySnapshot, *, now_s: float, jitter: Callable[[], float]) -> None:
        self._policy = policy.health
        self._clusters_policy = {entry.id: entry for entry in policy.clusters}
        self._orders: Mapping[str, ClusterOrder] = {}
        self._jitter = jitter
        self._records: dict[ClusterId, ClusterRecord] = {}
        self._dirty: set[ClusterId] = set()
        self._upheaval = False
        """Something changed that concerns the fleet as a whole, not only the dirty records."""
        self._judgement: Judgement = CALM
        self._events: deque[HealthEvent] = deque(maxlen=EVENTS_MAX)
        self._views = ViewBuilder()
        self._first_beat_s: float | None = None
        self._seen_s = now_s
        self._sweep_s = now_s
        self._resumed_s = float("-inf")
        """End of the last pause of this process."""
        self._pardon_until_s = float("-inf")
        """Until then agents may still be on their way back after a pause, so missing beats mean nothing."""

    def __repr__(self) -> str:
        return f"<Registry {report.line(self._sorted(), self._seen_s, fail_open=self.fail_open)}>"

    @property
    def policy(self) -> HealthPolicy:
        """The timings it judges by now."""
        return self._policy

    @property
    def view(self) -> ClusterView:
        """The fleet as last published."""
        return self._views.view

    @property
    def fail_open(self) -> bool:
        """Everybody fell silent at once, so this router suspects itself and excludes nobody for silence."""
        return self._judgement.fail_open

    def hello(self, hello: AgentHello, now_s: float) -> str:
        """An agent opened a stream. Returns '' or why it is not believed (an older boot epoch)."""
        self._notice_gap(now_s)
        record = self._records.get(hello.cluster)
        if record is None:
            record = ClusterRecord(hello, self._policy, now_s=now_s)
            self._records[hello.cluster] = record
            record.obey(self._clusters_policy.get(hello.cluster), self._orders.get(hello.cluster))
        before = record.beats.epoch
        if refused := record.beats.hello(hello.epoch, now_s):
            return refused
        if hello.epoch != before:
            self._emit(now_s, EventKind.EPOCH, record, str(before), str(hello.epoch))
        record.hello = hello
        entry = self._clusters_policy.get(hello.cluster)
        record.tier = TierName(entry.tier) if entry and entry.tier else hello.tier
        self._settle(record, now_s)
        return ""

    def beat(self, beat: BeatReport, now_s: float) -> str:
        """Take one beat. Returns '' or why it was ignored (no Hello yet, or not after the last one)."""
        self._notice_gap(now_s)
        record = self._records.get(beat.cluster)
        if record is None:
            return "no hello before the beat"
        if ignored := record.beats.beat(beat.epoch, beat.seq, now_s):
            return ignored
        if self._first_beat_s is None:
            self._first_beat_s = now_s
        turned = record.condition is not beat.condition
        record.condition = beat.condition
        record.warnings = beat.warnings
        record.beat_s = now_s
        self._upheaval |= record.take_pools(beat.pools) or turned
        if turned and beat.condition is Condition.SERVING and not self._among_the_first(record, now_s):
            record.ramp(now_s)
        self._settle(record, now_s)
        return ""

    def goodbye(self, cluster: ClusterId, epoch: int, now_s: float) -> None:
        """The agent stops on purpose: no new work, and what runs there is left alone."""
        self._notice_gap(now_s)
        record = self._records.get(cluster)
        if record is not None and not record.beats.goodbye(epoch, now_s):
            self._settle(record, now_s)

    def stream_lost(self, cluster: ClusterId, epoch: int, now_s: float) -> None:
        """A beat stream of `epoch` broke without a goodbye: SUSPECT at once if it was the last one."""
        self._notice_gap(now_s)
        record = self._records.get(cluster)
        if record is not None:
            record.beats.stream_lost(epoch, pardoned=now_s < self._pardon_until_s)
            self._settle(record, now_s)

    def probe(
        self,
        cluster: ClusterId,
        ok: bool,
        rtt_s: float | None,
        now_s: float,
        *,
        refused: bool = False,
        started_s: float | None = None,
    ) -> None:
        """One probe over the data path has ended. `refused`: nobody listens there, which is believed at once.

        `started_s`: when the question was asked; a miss that spans a pause of this process is no evidence.
        """
        self._notice_gap(now_s)
        record = self._records.get(cluster)
        if record is None:
            return
        if ok:
            usual = record.probes.state is Probes.OK and record.standing is Standing.SERVING
            record.probes.ok(rtt_s)
            if not record.follow_rtt() and usual:
                return  # the good case of a healthy cluster changes nothing
        elif refused:
            record.probes.refused()
        elif (now_s - self._policy.probe_timeout_s if started_s is None else started_s) >= self._resumed_s:
            record.probes.missed()
        self._settle(record, now_s)

    def attempt(self, attempt: Attempt, now_s: float, model: ModelId = UNKNOWN) -> None:
        """One attempt of a request for a base model has ended. Hot: the good case touches one record.

        What is said of an UNKNOWN model is held against the cluster.
        """
        record = self._records.get(attempt.cluster)
        if record is None:
            return
        if attempt.result is AttemptResult.OK:
            if record.succeeded(attempt, model, now_s):
                self._upheaval = True
                self._settle(record, now_s)
            return
        self._notice_gap(now_s)
        if record.failed(attempt, model, now_s, resumed_s=self._resumed_s, draw=self._jitter()):
            self._settle(record, now_s)

    def may_take(self, cluster: ClusterId, now_s: float, model: ModelId = UNKNOWN) -> bool:
        """Ask before a dispatch. False: a breaker is half open and another request is already trying."""
        record = self._records.get(cluster)
        return record is not None and record.may_take(model, now_s)

    def intent_of(self, cluster: ClusterId) -> Intent:
        """What operators and policy want of a cluster."""
        record = self._records.get(cluster)
        return Intent.SERVE if record is None else record.intent

    def heed(self, orders: Mapping[str, ClusterOrder], now_s: float) -> None:
        """Take over what operators say at run time, where it is new; of clusters yet to come, when they come."""
        before, self._orders = self._orders, orders
        for cluster, record in self._records.items():
            if orders.get(cluster) != before.get(cluster):
                intent, pinned = wanted(self._clusters_policy.get(cluster), orders.get(cluster))
                self.set_intent(cluster, intent, now_s)
                if pinned != record.pinned:
                    self.set_weight(cluster, pinned, now_s)

    def set_intent(self, cluster: ClusterId, intent: Intent, now_s: float) -> None:
        """What an operator wants of a cluster, until said otherwise. Raises ValueError for an unknown cluster."""
        record = self._known(cluster)
        before, record.intent = record.intent, intent
        if before is intent:
            return
        self._emit(now_s, EventKind.INTENT, record, before.value, intent.value, cause=Cause.OPERATOR)
        if intent is Intent.SERVE and not self._among_the_first(record, now_s):
            record.ramp(now_s)
        self._upheaval = True
        self._settle(record, now_s)

    def set_weight(self, cluster: ClusterId, weight: float, now_s: float) -> None:
        """Pin the upper bound of a cluster's share. Raises ValueError outside 0 to 1 or for an unknown cluster."""
        if not 0.0 <= weight <= 1.0:
            raise ValueError(f"weight is {weight}: must be between 0 and 1")
        record = self._known(cluster)
        before, record.pinned = record.pinned, weight
        self._emit(now_s, EventKind.WEIGHT, record, f"{before:g}", f"{weight:g}", cause=Cause.OPERATOR)
        self._upheaval = True
        self._settle(record, now_s)

    def apply_policy(self, policy: PolicySnapshot, now_s: float) -> None:
        """Judge by a new policy. What it says of a cluster is newer than what was set by hand only if it changed."""
        entries = {entry.id: entry for entry in policy.clusters}
        self._policy = policy.health
        for record in self._records.values():
            record.use_policy(policy.health)
            record.quiet_until_s = now_s
            entry = entries.get(record.hello.cluster)
            if entry != self._clusters_policy.get(record.hello.cluster):
                record.obey(entry, self._orders.get(record.hello.cluster))
        self._clusters_policy = entries
        self._sweep_s = now_s
        self._upheaval = True
        self.reconcile(now_s)

    def reconcile(self, now_s: float) -> ClusterView:
        """Restore the invariant between what is known and what is published; return the view."""
        self._notice_gap(now_s)
        self._seen_s = now_s
        swept = now_s >= self._sweep_s
        touched = self._touched(now_s, swept=swept)
        upheaval, self._upheaval = self._upheaval, False
        for record in touched.values():
            upheaval |= record.assess(now_s, pardoned=now_s < self._pardon_until_s)
        if upheaval and self._judge(now_s):
            touched = dict(self._records)
        for record in touched.values():
            first = record.standing is Standing.NEW and self._among_the_first(record, now_s)
            upheaval |= record.step(now_s, among_the_first=first)
        if upheaval or (swept and touched):
            turned = choose_last_resorts(self._records.values(), self._policy, now_s)
            touched.update((record.hello.cluster, record) for record in turned)
        return self._publish(touched.values(), now_s)

    def _touched(self, now_s: float, *, swept: bool) -> dict[ClusterId, ClusterRecord]:
        """Records that may look different now: those with news and, in a sweep, those that time can change."""
        if not swept:
            touched = {cluster: self._records[cluster] for cluster in sorted(self._dirty)}
        else:
            self._sweep_s = now_s + self._policy.sweep_interval_s
            touched = {
                cluster: record
                for cluster, record in self._records.items()
                if now_s >= record.quiet_until_s or cluster in self._dirty
            }
        self._dirty.clear()
        return touched

    def take_events(self) -> list[HealthEvent]:
        """What has changed since the last call, oldest first."""
        events = list(self._events)
        self._events.clear()
        return events

    def rows(self, now_s: float) -> list[dict[str, Any]]:
        """Every cluster in full, for `/admin/clusters`; ages and durations are as of `now_s`."""
        return [report.row(record, now_s, fail_open=self.fail_open) for record in self._sorted()]

    def _settle(self, record: ClusterRecord, now_s: float) -> None:
        self._dirty.add(record.hello.cluster)
        self.reconcile(now_s)

    def _notice_gap(self, now_s: float) -> None:
        """Grant to every cluster the time in which this process did not run."""
        late_s = now_s - self._seen_s - self._policy.sweep_interval_s
        if late_s <= self._policy.loop_gap_s:
            return
        self._seen_s = self._resumed_s = now_s
        self._pardon(now_s)
        for record in self._records.values():
            record.grant(late_s, now_s)
        self._dirty.update(self._records)
        self._upheaval = True
        self._emit(now_s, EventKind.GAP, None, "", f"{late_s:.1f}s", cause=Cause.OBSERVER)

    def _pardon(self, now_s: float) -> None:
        """Missing beats mean nothing for a while: agents give up on a router that does not acknowledge in time, and
        come back spread over some seconds. Probes go on."""
        self._pardon_until_s = now_s + max(self._policy.dead_after_s, AGENTS_RETURN_S)

    def _judge(self, now_s: float) -> bool:
        """Decide whether the fleet or this router is sick, and act on it; True on a change of mind."""
        members = [
            Member(record.hello.cluster, record.silent_since_s)
            for record in self._records.values()
            if record.intent is Intent.SERVE
            and (record.heard or (record.silent and record.standing is not Standing.NEW))
        ]
        before, self._judgement = self._judgement, judge(members, self._policy)
        for record in self._records.values():
            together = record.hello.cluster in self._judgement.recent
            record.spared = together or (record.spared and record.silent)
            if self.fail_open and together:
                record.excuse(now_s)
            elif record.excused and not self.fail_open:
                record.accuse(now_s)
        if before.fail_open is not self.fail_open:
            if before.fail_open:
                self._pardon(now_s)
            words = ("closed", "open") if self.fail_open else ("open", "closed")
            self._emit(now_s, EventKind.FAIL_OPEN, None, *words, cause=Cause.OBSERVER)
        return self._judgement != before

    def _among_the_first(self, record: ClusterRecord, now_s: float) -> bool:
        """Nobody was serving its models before it: this router has just started, or there is nobody else.

        A restarted router hears the whole fleet anew within seconds; ramping all of it would only shed requests.
        """
        if self._first_beat_s is None or now_s - self._first_beat_s <= self._policy.dead_after_s:
            return True
        others = (other for other in self._records.values() if other.working and other is not record)
        return not any(other.names & record.names for other in others)

    def _publish(self, records: Iterable[ClusterRecord], now_s: float) -> ClusterView:
        """Swap the view if anything in it changed."""
        fail_open = self.fail_open
        changed = []
        for record in records:
            record.rest()
            look = look_of(record, now_s, fail_open=fail_open)
            if look != record.look:
                before = record.look
                record.look = look
                reason = report.reason(record, now_s)
                changed.append((state_of(record, look, reason), record.offered))
                if before is None or before.status is not look.status:
                    self._tell(record, before, look, reason, now_s)
                if before is not None and before.pools_ejected != look.pools_ejected:
                    words = (", ".join(sorted(each.pools_ejected)) for each in (before, look))
                    self._emit(now_s, EventKind.POOLS, record, *words, cause=Cause.BREAKER, reason=reason)
        if not changed and fail_open is self.view.fail_open:
            return self.view
        return self._views.publish(changed, fail_open=fail_open)

    def _tell(self, record: ClusterRecord, before: Look | None, after: Look, reason: str, now_s: float) -> None:
        """A status has changed."""
        was = before.status if before else ClusterStatus.UNKNOWN
        if record.intent is Intent.MAINTENANCE or was is after.status:
            return
        fell = after.status in (ClusterStatus.SUSPECT, ClusterStatus.DEAD)
        self._emit(
            now_s,
            EventKind.STATUS,
            record,
            was.value,
            after.status.value,
            cause=record.cause if record.cause is not Cause.NONE else Cause.RECOVERY,
            reason=reason,
            redispatch=fell and redispatch(record),
        )

    def _known(self, cluster: ClusterId) -> ClusterRecord:
        if cluster not in self._records:
            raise ValueError(f"cluster {cluster!r} is unknown; known are {', '.join(sorted(self._records)) or 'none'}")
        return self._records[cluster]

    def _sorted(self) -> list[ClusterRecord]:
        return [self._records[cluster] for cluster in sorted(self._records)]

    def _emit(
        self, now_s: float, kind: EventKind, record: ClusterRecord | None, before: str, after: str, **more: Any
    ) -> None:
        cluster = record.hello.cluster if record else None
        self._events.append(HealthEvent(at_s=now_s, kind=kind, cluster=cluster, before=before, after=after, **more))
