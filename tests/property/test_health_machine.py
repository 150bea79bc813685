"""The registry under any interleaving of good and bad news, pauses, repeats and operators."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gir.health.registry import Registry
from gir.model.beat import AgentHello, BeatReport, Condition
from gir.model.cluster import ClusterStatus, Intent, index_view
from gir.model.ids import ClusterId, ModelId, RegionId, TierName
from gir.model.outcome import Attempt, AttemptResult, Phase
from gir.model.policy import HealthPolicy, PolicySnapshot
from tests.support.fleet import pool

NAMES = ("eu-1", "us-1", "ap-1")
HEALTH = HealthPolicy(ejection_max_s=20.0, holddown_max_s=10.0, flap_window_s=60.0, ramp_s=10.0)
names = st.sampled_from(NAMES)


class RegistryMachine(RuleBasedStateMachine):
    """Feeds a registry, and a second one that also hears every beat twice and out of turn (I5)."""

    @initialize()
    def start(self) -> None:
        self.now_s = 100.0
        self.pair = [Registry(PolicySnapshot(health=HEALTH), now_s=self.now_s, jitter=lambda: 0.5) for _ in range(2)]
        self.epochs = dict.fromkeys(NAMES, 0)
        self.seqs = dict.fromkeys(NAMES, 0)
        self.models = {"eu-1": ("llama",), "us-1": ("llama", "qwen"), "ap-1": ("qwen",)}
        self.heard: list[BeatReport] = []

    def _hello(self, name: str) -> None:
        hello = AgentHello(
            cluster=ClusterId(name), region=RegionId("r"), url="http://x", tier=TierName("t"), epoch=self.epochs[name]
        )
        for registry in self.pair:
            registry.hello(hello, self.now_s)

    def _beat(self, name: str, condition: Condition = Condition.SERVING) -> None:
        self.seqs[name] += 1
        report = BeatReport(
            cluster=ClusterId(name),
            epoch=self.epochs[name],
            seq=self.seqs[name],
            pools=tuple(pool(model) for model in self.models[name]),
            condition=condition,
        )
        for registry in self.pair:
            registry.beat(report, self.now_s)
        self.heard.append(report)
        for old in self.heard[-3:]:
            self.pair[1].beat(old, self.now_s)

    def _probe(self, name: str, outcome: str) -> None:
        for registry in self.pair:
            registry.probe(
                ClusterId(name), outcome == "ok", 0.01 if outcome == "ok" else None, self.now_s, refused=outcome == "no"
            )

    @rule(name=names)
    def agent_starts(self, name: str) -> None:
        self.epochs[name] += 1
        self.seqs[name] = 0
        self._hello(name)

    @rule(name=names, condition=st.sampled_from(Condition))
    def agent_beats(self, name: str, condition: Condition) -> None:
        self._hello(name)
        self._beat(name, condition)

    @rule(name=names, kind=st.sampled_from(["goodbye", "lost"]))
    def stream_ends(self, name: str, kind: str) -> None:
        for registry in self.pair:
            end = registry.goodbye if kind == "goodbye" else registry.stream_lost
            end(ClusterId(name), self.epochs[name], self.now_s)

    @rule(name=names, outcome=st.sampled_from(["ok", "miss", "no"]), times=st.integers(1, 4))
    def probes_end(self, name: str, outcome: str, times: int) -> None:
        for _ in range(times):
            self._probe(name, outcome)

    @rule(name=names, result=st.sampled_from(AttemptResult), times=st.integers(1, 12), age_s=st.floats(0.0, 30.0))
    def attempts_end(self, name: str, result: AttemptResult, times: int, age_s: float) -> None:
        attempt = Attempt(
            cluster=ClusterId(name),
            result=result,
            phase=Phase.DISPATCHED,
            started_s=self.now_s - age_s,
            ended_s=self.now_s,
            retry_after_s=1.0 if result is AttemptResult.BACKPRESSURE else None,
        )
        for registry in self.pair:
            for _ in range(times):
                registry.attempt(attempt, self.now_s)

    @rule(name=names)
    def request_asks(self, name: str) -> None:
        assert len({registry.may_take(ClusterId(name), self.now_s) for registry in self.pair}) == 1

    @rule(name=names, intent=st.sampled_from(Intent))
    def operator_decides(self, name: str, intent: Intent) -> None:
        for registry in self.pair:
            if any(state.id == name for state in registry.view.clusters):
                registry.set_intent(ClusterId(name), intent, self.now_s)

    @rule(steps=st.integers(1, 40))
    def time_passes(self, steps: int) -> None:
        for _ in range(steps):
            self.now_s += 0.5
            for registry in self.pair:
                registry.reconcile(self.now_s)

    @rule(gap_s=st.floats(0.1, 60.0))
    def router_is_paused(self, gap_s: float) -> None:
        self.now_s += gap_s
        statuses = self._statuses()
        for registry in self.pair:
            registry.reconcile(self.now_s)
        if gap_s > HEALTH.loop_gap_s + HEALTH.sweep_interval_s:
            fallen = {
                cluster
                for cluster, status in self._statuses().items()
                if status in (ClusterStatus.SUSPECT, ClusterStatus.DEAD)
                and statuses[cluster] in (ClusterStatus.HEALTHY, ClusterStatus.RAMPING)
            }
            assert not fallen, "a pause took clusters out"

    @rule()
    def all_is_well_for_two_minutes(self) -> None:
        for name in NAMES:
            self.epochs[name] += 1
            self.seqs[name] = 0
            self._hello(name)
            for registry in self.pair:
                registry.set_intent(ClusterId(name), Intent.SERVE, self.now_s)
        for second in range(120):
            self.now_s += 0.5
            self.time_passes(1)
            for name in NAMES:
                self._probe(name, "ok")
                if second % 2 == 0:
                    self._beat(name)
                if self.pair[0].may_take(ClusterId(name), self.now_s) & self.pair[1].may_take(
                    ClusterId(name), self.now_s
                ):
                    self.attempts_end(name, AttemptResult.OK, 1, 0.0)
        assert {state.weight for state in self.pair[0].view.clusters} == {1.0}, repr(self.pair[0])
        assert set(self._statuses().values()) == {ClusterStatus.HEALTHY}

    def _statuses(self) -> dict[ClusterId, ClusterStatus]:
        return {state.id: state.status for state in self.pair[0].view.clusters}

    @invariant()
    def repeats_and_stragglers_change_nothing(self) -> None:
        assert repr(self.pair[0]) == repr(self.pair[1])

    @invariant()
    def the_patched_index_is_the_full_index(self) -> None:
        view = self.pair[0].view
        assert view == index_view(view.version, view.clusters, fail_open=view.fail_open)

    @invariant()
    def weights_are_shares_and_the_dead_have_none(self) -> None:
        for state in self.pair[0].view.clusters:
            assert 0.0 <= state.weight <= 1.0
            assert state.weight == 0.0 or state.status is not ClusterStatus.DEAD
            assert state.weight == 0.0 or state.intent is Intent.SERVE

    @invariant()
    def no_model_loses_its_last_candidate(self) -> None:
        rows = {row["cluster"]: row for row in self.pair[0].rows(self.now_s)}
        for model, states in self.pair[0].view.by_model.items():
            willing = [
                state
                for state in states
                if model in rows[state.id]["models"]
                and state.intent is Intent.SERVE
                and rows[state.id]["condition"] == "serving"
                and rows[state.id]["beats"]["state"] != "gone"
                and rows[state.id]["probes"]["state"] != "refused"
            ]
            assert not willing or any(state.weight > 0.0 for state in willing), f"{ModelId(model)}: {self.pair[0]!r}"

    @invariant()
    def the_admin_rows_are_json(self) -> None:
        msgspec.json.encode(self.pair[0].rows(self.now_s))


TestRegistry = pytest.mark.slow(RegistryMachine.TestCase)
TestRegistry.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
