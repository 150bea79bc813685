"""A bad canary goes by itself, soon; a good one is left in peace; the control group never notices."""

import heapq
import math
import random
from collections import deque
from statistics import fmean

import pytest

from gir.model.policy import CanaryGuard, CanaryRule, CanaryTarget, RuleMatch
from gir.place import Rewriter
from gir.place.guard import Arm, Sample, slower_z, verdict, wilson_lower
from gir.place.trial import Rewrite, TrialState
from tests.support.placing import NOW_S, cluster, policy, pool, principal, view

FLEET = view(cluster("a", pools=[pool(), pool(model="llama-next")]))


def rule(weight: int) -> CanaryRule:
    targets = (CanaryTarget(model="llama", weight=100 - weight), CanaryTarget(model="llama-next", weight=weight))
    return CanaryRule(name="next", matches=(RuleMatch(model="llama"),), targets=targets, guard=CanaryGuard())


class Run:
    """Requests of many sessions through one guarded rule, answered by two behaviours."""

    def __init__(self, *, weight: int = 10, per_s: float = 20.0, seed: int = 1, spread: float = 0.8) -> None:
        self.rewriter, self.rules = Rewriter(), policy(rewrites=(rule(weight),))
        self.chance = random.Random(seed)
        self.per_s = per_s
        self.spread = spread
        self.canary = self.control = 0
        self.now_s = NOW_S
        self.homes: dict[str, str] = {}

    def until_abort(self, *, error_rate: float = 0.0, slower: float = 1.0, requests_max: int = 5_000) -> bool:
        for number in range(requests_max):
            self.now_s = NOW_S + number / self.per_s
            session = f"s{number % 997}"
            got = self.rewriter.rewrite("llama", [], principal(), session, self.rules, FLEET, self.now_s)
            ttft_s = self.chance.lognormvariate(-1.2, self.spread) * (slower if got.arm else 1.0)
            ok = self.chance.random() >= (error_rate if got.arm else 0.01)
            self.canary += got.arm
            self.control += not got.arm
            self.homes.setdefault(session, got.model)
            self.rewriter.observe(got, ok, ttft_s if ok else None, self.now_s)
            if self.state is TrialState.ABORTED:
                return True
        return False

    @property
    def state(self) -> TrialState:
        return self.rewriter.trial("next").state


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("fault", [{"error_rate": 0.5}, {"slower": 3.0}])
def test_a_bad_canary_is_aborted_within_30_s_or_50_requests(fault, seed):
    run = Run(seed=seed)
    assert run.until_abort(**fault)
    assert run.now_s - NOW_S <= 30.0 or run.canary <= 50


@pytest.mark.parametrize("fault", [{"error_rate": 0.5}, {"slower": 3.0}])
def test_at_a_trickle_fifty_requests_suffice(fault):
    run = Run(per_s=0.5, weight=50, seed=5)
    assert run.until_abort(**fault)
    assert run.canary <= 50


@pytest.mark.slow
@pytest.mark.parametrize("weight", [10, 50])
def test_fifty_requests_suffice_however_widely_times_are_spread(weight):
    """Times of the recorded conversations: one standard deviation is a factor of two and a half."""
    late = 0
    for seed in range(200):
        run = Run(weight=weight, seed=seed, spread=0.95)
        assert run.until_abort(slower=3.0)
        late += run.canary > 50
    assert late <= 1


def times(count: int, factor: float = 1.0) -> list[float]:
    """Times to first token spread evenly, on the scale of logarithms, over one and a half orders of magnitude."""
    return [factor * 10.0 ** (-1.0 + 1.5 * (number % 25) / 24) for number in range(count)]


def judged(canary: list[float], control: list[float], *, before: int = 0) -> str:
    """Verdict on a canary that has served `before` requests already."""
    arms = Arm(), Arm()
    arms[0].requests = before
    for arm, each in zip(arms, (canary, control), strict=True):
        for ttft_s in each:
            arm.add(Sample(NOW_S, True, ttft_s))
    return verdict(*arms, CanaryGuard(), NOW_S)


def test_an_unlucky_p95_does_not_hide_what_is_plain_from_all_the_others():
    unlucky_control = [*times(45), *[30.0] * 5]
    assert "p95 time to first token 8.215 s (typical" in judged(times(50, 3.0), unlucky_control)
    assert not judged(times(50, 1.2), unlucky_control)


def test_a_slow_tail_behind_good_typical_times_is_found():
    control = times(200, 0.1)[:8] * 25
    tail = [each * (20.0 if number % 8 == 0 else 1.0) for number, each in enumerate(control)]
    assert math.exp(fmean(map(math.log, tail)) - fmean(map(math.log, control))) < CanaryGuard().ttft_p95_ratio_max
    assert "p95" in judged(tail, control)
    assert not judged(control, control)


def test_two_dozen_requests_that_may_be_slow_by_chance_are_not_enough():
    perhaps, control = times(25, 2.1), times(25)
    assert 2.0 < slower_z(perhaps, control) < 3.0
    assert not judged(perhaps, control)
    assert judged(times(25, 3.0), control)


def test_at_its_fiftieth_result_a_canary_gets_less_benefit_of_the_doubt():
    perhaps, control = times(25, 2.3), times(25)
    assert 2.5 < slower_z(perhaps, control) < 3.2
    assert [bool(judged(perhaps, control, before=before)) for before in (0, 19, 20, 25, 26)] == [
        False, False, True, True, False,
    ]  # fmt: skip


def test_the_longer_a_canary_has_served_the_more_is_wanted_to_condemn_it():
    """The guard looks hundreds of times: what chance does once in a thousand looks must not end a sound canary."""
    doubtful, control = times(50, 1.97), times(200)
    assert 4.0 < slower_z(doubtful, control) < 4.5
    assert judged(doubtful, control)
    assert not judged(doubtful, control, before=51)
    assert judged(times(50, 3.0), control, before=51)


def test_after_an_abort_the_control_group_is_where_it_was_and_the_canary_group_joins_it():
    run = Run(weight=30)
    assert run.until_abort(error_rate=0.5)
    for session in run.homes:
        again = run.rewriter.rewrite("llama", [], principal(), session, run.rules, FLEET, run.now_s)
        assert again.model == "llama"
    (event,) = run.rewriter.take_events()
    assert (event.action, event.by) == ("abort", "guard")
    assert "error rate" in event.detail


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_canary_like_its_control_is_left_in_peace(seed):
    run = Run(weight=20, seed=seed)
    assert not run.until_abort(error_rate=0.01)


@pytest.mark.parametrize("seed", range(4))
def test_a_smaller_trespass_is_found_when_there_are_more_requests_to_judge_by(seed):
    run = Run(weight=50, seed=seed)
    assert run.until_abort(slower=1.7)
    run = Run(weight=50, seed=seed)
    assert run.until_abort(error_rate=0.2)
    assert run.canary <= 70


def test_a_canary_that_hangs_is_found_out_without_a_single_answer():
    run = Run(weight=50, per_s=10.0)
    for number in range(600):
        run.now_s = NOW_S + number / run.per_s
        got = run.rewriter.rewrite("llama", [], principal(), f"s{number}", run.rules, FLEET, run.now_s)
        if not got.arm:
            run.rewriter.observe(got, True, 0.3, run.now_s)
        run.rewriter.tick(run.now_s)
        if run.state is TrialState.ABORTED:
            break
    assert run.state is TrialState.ABORTED
    assert run.now_s - NOW_S <= 30.0


def stream_for(run: Run, lasts_s: float, *, slower: float = 1.0, until_s: float = 120.0) -> None:
    """Long streams at twenty a second, ticked once a second, until the canary is aborted or time is up."""
    underway: deque[tuple[float, Rewrite, float]] = deque()
    heard: list[tuple[float, int, Rewrite, float]] = []
    for number in range(int(until_s * run.per_s)):
        run.now_s = NOW_S + number / run.per_s
        got = run.rewriter.rewrite("llama", [], principal(), f"s{number}", run.rules, FLEET, run.now_s)
        run.canary += got.arm
        ttft_s = run.chance.lognormvariate(-1.2, 0.5) * (slower if got.arm else 1.0)
        underway.append((run.now_s + lasts_s, got, ttft_s))
        heapq.heappush(heard, (run.now_s + ttft_s, number, got, ttft_s))
        while heard[0][0] <= run.now_s:
            _, _, other, its_s = heapq.heappop(heard)
            other.ttft_s = its_s
        while underway[0][0] <= run.now_s:
            _, other, its_s = underway.popleft()
            run.rewriter.observe(other, True, its_s, run.now_s)
        if number % int(run.per_s) == 0:
            run.rewriter.tick(run.now_s)
        if run.state is TrialState.ABORTED:
            return


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("lasts_s", [10.0, 60.0])
def test_streams_that_go_on_after_their_first_token_are_not_taken_for_requests_that_hang(seed, lasts_s):
    run = Run(weight=10, seed=seed)
    stream_for(run, lasts_s)
    assert run.state is TrialState.RUNNING, run.rewriter.trial("next").reason


@pytest.mark.parametrize("seed", range(4))
def test_a_slow_canary_is_gone_in_time_although_no_stream_has_ended(seed):
    run = Run(weight=10, seed=seed)
    stream_for(run, 60.0, slower=3.0)
    assert run.state is TrialState.ABORTED
    assert run.now_s - NOW_S <= 30.0


def impatient(run: Run, *, waits_s: float, ttft_s: float | None, control_s: float = 0.3) -> None:
    """Ten a second for two minutes; every client of the canary leaves after `waits_s`."""
    leaving: deque[tuple[float, Rewrite]] = deque()
    for number in range(1_200):
        run.now_s = NOW_S + number / 10.0
        got = run.rewriter.rewrite("llama", [], principal(), f"s{number}", run.rules, FLEET, run.now_s)
        run.canary += got.arm
        if got.arm:
            leaving.append((run.now_s + waits_s, got))
        else:
            its_s = control_s * run.chance.uniform(0.8, 1.2)
            run.rewriter.observe(got, True, its_s, run.now_s)
        while leaving and leaving[0][0] <= run.now_s:
            run.rewriter.observe(leaving.popleft()[1], None, ttft_s, run.now_s)
        run.rewriter.tick(run.now_s)
        if run.state is TrialState.ABORTED:
            return


def test_a_canary_that_hangs_is_found_out_although_every_client_leaves():
    run = Run(weight=10)
    impatient(run, waits_s=3.0, ttft_s=None)
    assert run.state is TrialState.ABORTED
    assert run.now_s - NOW_S <= 30.0


def test_a_slow_canary_is_found_out_although_every_client_leaves_in_the_middle():
    run = Run(weight=10)
    impatient(run, waits_s=4.0, ttft_s=0.9)
    assert run.state is TrialState.ABORTED
    assert run.canary <= 50


@pytest.mark.parametrize(("waits_s", "ttft_s"), [(0.2, None), (5.0, 0.3)])
def test_clients_that_leave_a_sound_canary_are_not_held_against_it(waits_s, ttft_s):
    run = Run(weight=10)
    impatient(run, waits_s=waits_s, ttft_s=ttft_s)
    assert run.state is TrialState.RUNNING, run.rewriter.trial("next").reason


def test_a_fleet_that_hangs_for_both_is_not_the_canarys_fault():
    run = Run(weight=50)
    for number in range(600):
        run.now_s = NOW_S + number * 0.1
        got = run.rewriter.rewrite("llama", [], principal(), f"s{number}", run.rules, FLEET, run.now_s)
        hangs = number >= 300
        ended_s = run.now_s + (3.0 if hangs else 0.3)
        run.rewriter.observe(got, None if hangs else True, None if hangs else run.chance.uniform(0.2, 0.4), ended_s)
    assert run.state is TrialState.RUNNING, run.rewriter.trial("next").reason


def test_ends_that_say_nothing_about_the_model_are_not_held_against_it():
    run = Run(weight=50)
    for number in range(600):
        got = run.rewriter.rewrite("llama", [], principal(), f"s{number}", run.rules, FLEET, NOW_S + number)
        run.rewriter.observe(got, None if got.arm else True, None if got.arm else 0.2, NOW_S + number)
    assert run.state is TrialState.RUNNING


def test_a_result_counts_once():
    run = Run(weight=100)
    got = run.rewriter.rewrite("llama", [], principal(), "s", run.rules, FLEET, NOW_S)
    for _ in range(60):
        run.rewriter.observe(got, False, None, NOW_S)
    assert run.state is TrialState.RUNNING


def test_errors_of_the_whole_fleet_are_not_the_canarys_fault():
    run = Run(weight=50)
    for number in range(400):
        got = run.rewriter.rewrite("llama", [], principal(), f"s{number}", run.rules, FLEET, NOW_S + number * 0.1)
        run.rewriter.observe(got, number % 2 == 0, 0.2, NOW_S + number * 0.1)
    assert run.state is TrialState.RUNNING


def test_the_statistics_are_those_of_the_textbook():
    assert wilson_lower(10, 20, z=1.96) == pytest.approx(0.299, abs=1e-3)
    assert wilson_lower(0, 20, z=1.96) == pytest.approx(0.0, abs=1e-9)
    times, base = [2.0, 4.0, 8.0], [1.0, 2.0, 4.0]
    assert slower_z(times, base) == pytest.approx(1.0 / (2.0 / 3.0) ** 0.5), "one power of two over two thirds of one"
    assert slower_z(base, base) == pytest.approx(0.0)
