"""How a router carries out orders: drains for clusters yet to come, canaries in step with every other router."""

import msgspec
import pytest

from gir.control import changes
from gir.control.changes import Seen, Voice
from gir.health.events import EventKind
from gir.model.cluster import Intent
from gir.model.ids import ClusterId
from gir.model.orders import ClusterOrder, Orders, mark
from gir.model.policy import CanaryGuard, ClusterPolicy, PolicySnapshot
from gir.place import Rewriter
from gir.place.trial import TrialState
from tests.support.fleet import Fleet
from tests.support.placing import NOW_S, policy
from tests.unit.test_place_rewrite import ask, split

US = ClusterId("us-1")
WALL_S = 1_800_000_000.0
ANN = Voice("ann", WALL_S)
RULE = split(10, guard=CanaryGuard(), plan=((0.0, 10), (60.0, 50), (120.0, 100)))
RULES = policy(rewrites=(RULE,))


def settled(*names: str) -> Fleet:
    fleet = Fleet(*names)
    fleet.run(30.0)
    return fleet


def order(**said) -> ClusterOrder:
    return ClusterOrder(by="ann", at_unix_s=1.0, **said)


# Clusters


def test_a_drain_is_carried_out_once_and_ends_by_a_ramp() -> None:
    fleet = settled("eu-1", "us-1")
    drained = {"us-1": order(intent="drain", weight=0.5)}
    for _ in range(2):
        fleet.registry.heed(drained, fleet.now_s)
    assert (fleet.state("us-1").intent, fleet.state("us-1").weight) == (Intent.DRAIN, 0.0)
    fleet.run(1.0)
    fleet.registry.heed({}, fleet.now_s)
    assert "us-1:RAMPING" in fleet.line()
    fleet.statuses("us-1")
    assert [(e.before, e.after) for e in fleet.events if e.kind is EventKind.INTENT] == [
        ("serve", "drain"),
        ("drain", "serve"),
    ]
    assert [(e.before, e.after) for e in fleet.events if e.kind is EventKind.WEIGHT] == [("1", "0.5"), ("0.5", "1")]


def test_a_cluster_that_comes_later_finds_its_order_waiting() -> None:
    fleet = settled("eu-1")
    fleet.registry.heed({"us-1": order(intent="drain")}, fleet.now_s)
    fleet.join("us-1")
    assert fleet.state("us-1").intent is Intent.DRAIN
    fleet.registry.heed({"eu-1": order(intent="maintenance")}, fleet.now_s)
    fleet.statuses("us-1")
    assert not [event for event in fleet.events if event.kind is EventKind.WEIGHT], "nobody spoke of weights"


def test_a_policy_that_says_something_new_of_a_cluster_is_newer_than_an_order() -> None:
    fleet = settled("eu-1", "us-1")
    fleet.registry.heed({"us-1": order(intent="drain")}, fleet.now_s)
    same = PolicySnapshot(health=fleet.health, version=2)
    fleet.registry.apply_policy(same, fleet.now_s)
    assert fleet.state("us-1").intent is Intent.DRAIN
    entry = ClusterPolicy(id=US, weight=0.9)
    fleet.registry.apply_policy(PolicySnapshot(health=fleet.health, clusters=(entry,)), fleet.now_s)
    assert fleet.state("us-1").intent is Intent.SERVE
    fleet.restart("us-1")
    assert fleet.state("us-1").intent is Intent.SERVE
    fleet.registry.heed({"us-1": order(intent="drain", of=mark(entry))}, fleet.now_s)
    assert fleet.state("us-1").intent is Intent.DRAIN


# Canaries


class Router:
    """A rewriter under RULES that heeds what is ordered."""

    def __init__(self, rules=RULES) -> None:
        self.rewriter = Rewriter()
        self.rewriter.adopt(rules, NOW_S)

    @property
    def trial(self):
        return self.rewriter.trial("next")

    def heed(self, orders: Orders, now_s: float = NOW_S) -> None:
        self.rewriter.heed(orders.canaries, now_s, WALL_S + now_s - NOW_S)

    def share(self) -> float:
        return self.trial.shares()["llama-next"]


def seen(router: Router) -> Seen:
    trial = router.trial
    return Seen(rule=trial.rule, launched=False, run=trial.run, state=trial.state.value, began_unix_s=WALL_S)


def said(change, *, orders: Orders | None = None) -> Orders:
    return change(orders or Orders(), False)


def test_a_verdict_of_one_router_is_every_routers_and_on_record() -> None:
    first, second = Router(), Router()
    orders = said(changes.condemn(seen(first), Voice("guard at r-1", WALL_S), "error rate 50%"))
    second.heed(orders)
    second.heed(orders)
    assert (second.trial.state, second.trial.reason) == (TrialState.ABORTED, "error rate 50%")
    assert [(e.action, e.by) for e in second.rewriter.take_events()] == [("abort", "guard at r-1")]
    later = Router()
    later.heed(orders)
    assert later.share() == 0.0, "a router that starts later finds it aborted"


@pytest.mark.parametrize("known_first", [True, False])
def test_a_router_that_starts_hears_orders_before_or_after_its_policy(known_first: bool) -> None:
    orders = said(changes.promote(seen(Router()), ANN))
    router = Router(RULES if known_first else policy())
    router.heed(orders)
    router.rewriter.adopt(RULES, NOW_S)
    assert router.share() == 1.0


def test_news_that_do_not_know_of_a_verdict_here_do_not_undo_it() -> None:
    router = Router()
    router.trial.abort(NOW_S, "guard", "slow")
    router.heed(said(changes.advance(seen(router), ANN, 1)))
    assert router.trial.state is TrialState.ABORTED


def test_a_start_elsewhere_begins_here_too_with_no_results() -> None:
    router = Router()
    for number in range(40):
        router.rewriter.observe(ask(router.rewriter, None, policy=RULES, session=f"s{number}"), True, 0.1, NOW_S)
    router.trial.abort(NOW_S, "guard", "slow")
    started = said(changes.start(seen(router), ANN))
    router.heed(started, NOW_S + 1.0)
    row = router.trial.row(NOW_S + 5.0)
    assert (row["state"], row["run"], row["reason"]) == ("running", 1, "")
    assert sum(target["requests"] for target in row["targets"]) == 0
    assert row["running_s"] == 5.0, "it began when it was ordered, not when it was heard of"


def test_a_plan_goes_on_where_the_fleet_stands() -> None:
    router = Router()
    began = said(changes.start(seen(router), ANN))
    router.heed(began)
    orders = said(changes.advance(seen(router), ANN, 1), orders=began)
    late = Router()
    late.heed(orders, NOW_S + 90.0)
    assert (late.trial.stage, late.share()) == (1, 0.5)
    assert late.trial.row(NOW_S + 90.0)["running_s"] == 90.0
    beyond = msgspec.structs.replace(orders.canaries["next"], stage=9)
    late.rewriter.heed({"next": beyond}, NOW_S, WALL_S)
    assert late.trial.stage == 1, "a stage this plan does not have"


def test_a_router_that_starts_late_counts_from_the_fleets_beginning() -> None:
    early = Router()
    orders = said(changes.advance(seen(early), ANN, 1))
    late = Router()
    late.trial.started_s = NOW_S + 110.0
    late.heed(orders, NOW_S + 110.0)
    assert late.trial.row(NOW_S + 110.0)["running_s"] == 110.0
    early.heed(orders, NOW_S + 110.0)
    assert early.trial.started_s == NOW_S


def test_a_rule_that_only_orders_bring_is_a_rule_until_they_do_not() -> None:
    router = Router(policy())
    orders = changes.launch(RULE, ANN)(Orders(), False)
    router.heed(orders)
    assert not router.rewriter.is_listed("next")
    assert ask(router.rewriter, None, policy=router.rewriter.policy).rule == "next"
    router.heed(Orders())
    assert ask(router.rewriter, None, policy=router.rewriter.policy).rule == ""


def test_a_policy_takes_over_a_launched_rule_with_its_verdict_if_it_is_the_same() -> None:
    launched = changes.launch(RULE, ANN)(Orders(), False)
    mine = Seen(rule=RULE, launched=True, run=1, state="running", began_unix_s=WALL_S)
    promoted = changes.promote(mine, ANN)(launched, False)
    router = Router(policy())
    router.heed(promoted)
    router.rewriter.adopt(RULES, NOW_S)
    assert (router.rewriter.is_listed("next"), router.share()) == (True, 1.0)
    other = policy(rewrites=(split(30, guard=CanaryGuard()),))
    router.rewriter.adopt(other, NOW_S)
    assert router.share() == 0.3, "a policy that says something else of it is newer"


def test_an_order_that_makes_no_sense_for_a_rule_changes_nothing() -> None:
    alone = split(10, targets=RULE.targets[:1])
    router = Router(policy(rewrites=(alone,)))
    forged = msgspec.structs.replace(said(changes.start(seen(router), ANN)).canaries["next"], state="promoted")
    router.rewriter.heed({"next": forged}, NOW_S, WALL_S)
    assert router.trial.state is TrialState.RUNNING


def test_a_clock_that_is_behind_makes_no_canary_that_began_in_the_future() -> None:
    router = Router()
    router.rewriter.heed(said(changes.start(seen(router), ANN)).canaries, NOW_S, WALL_S - 40.0)
    assert router.trial.row(NOW_S)["running_s"] == 0.0
    assert router.trial.started_s == NOW_S
