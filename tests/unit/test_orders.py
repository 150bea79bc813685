"""The operators' document and what may be done to it: pure steps, worked out again on whatever is newest."""

import msgspec
import pytest

from gir.admit.limits import overridden
from gir.control import changes
from gir.control.changes import Seen, SupersededError, Voice
from gir.control.orders import check_orders
from gir.model.orders import BYTES_MAX, Orders, decode, encode, mark
from gir.model.policy import CanaryGuard, CanaryRule, CanaryTarget, ClusterPolicy, LimitRule, RuleMatch

RULE = CanaryRule(
    name="next",
    matches=(RuleMatch(model="llama"),),
    targets=(CanaryTarget(model="llama", weight=90), CanaryTarget(model="llama-next", weight=10)),
    plan=((0.0, 10), (60.0, 50)),
)
ANN, BOB = Voice("ann", 100.0), Voice("bob", 200.0)
NOTHING = Orders()


def seen(**fields) -> Seen:
    known = {"rule": RULE, "launched": False, "run": 0, "state": "running", "began_unix_s": 50.0}
    return Seen(**(known | fields))


def after(*steps: changes.Change, orders: Orders = NOTHING) -> Orders:
    for step in steps:
        orders = step(orders, False)
    return orders


def test_a_document_reads_back_as_it_was_written() -> None:
    orders = after(
        changes.cluster("eu-1", ClusterPolicy(id="eu-1", weight=0.5), ANN, intent="drain", weight=0.25),
        changes.launch(RULE, ANN),
        changes.limit("per-tenant", {"requests_per_min": 5}, BOB),
    )
    assert decode(encode(orders)) == orders
    assert encode(orders) == encode(decode(encode(orders)))
    assert decode(b"") == Orders()
    assert not Orders()
    assert orders


@pytest.mark.parametrize(
    "text",
    [
        b"{",
        b"[]",
        b'{"format":2}',
        b'{"format":1,"surprise":1}',
        b'{"format":1,"clusters":{"a":{"intent":"explode","by":"x","at_unix_s":1}}}',
        b'{"format":1,"clusters":{"a":{"weight":2.0,"by":"x","at_unix_s":1}}}',
        b'{"format":1,"limits":{"a":{"requests_per_min":0,"by":"x","at_unix_s":1}}}',
        b'{"format":1,"canaries":{"a":{"of":"","run":-1,"began_unix_s":1,"by":"x","at_unix_s":1}}}',
        b'{"format":1,"canaries":{"a":{"of":"","run":1,"state":"paused","began_unix_s":1,"by":"x","at_unix_s":1}}}',
        b"x" * (BYTES_MAX + 1),
    ],
)
def test_a_document_that_makes_no_sense_is_refused_as_a_whole(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(text)


def test_a_rule_must_stand_under_its_own_name_and_be_one_that_a_policy_could_have() -> None:
    launched = after(changes.launch(RULE, ANN))
    moved = msgspec.structs.replace(launched, canaries={"other": launched.canaries["next"]})
    with pytest.raises(ValueError, match="must be the key"):
        decode(encode(moved))
    weightless = msgspec.structs.replace(RULE, targets=(CanaryTarget(model="a", weight=0),), plan=())
    with pytest.raises(ValueError, match="all weights are 0"):
        check_orders(after(changes.launch(weightless, ANN)))
    check_orders(launched)


def test_a_document_too_large_to_be_read_is_not_written() -> None:
    with pytest.raises(ValueError, match="remove old canaries"):
        encode(after(*(changes.cluster(f"{n:0>900}", None, ANN, intent="drain") for n in range(300))))


def test_launches_leave_room_for_verdicts_and_drains() -> None:
    orders, rules = NOTHING, []

    def launch_on() -> None:
        nonlocal orders
        for number in range(1_000):
            rule = msgspec.structs.replace(RULE, name=f"canary-{number}-{'x' * 200}")
            orders = after(changes.launch(rule, ANN), orders=orders)
            rules.append(rule)

    with pytest.raises(ValueError, match="remove old canaries"):
        launch_on()
    assert len(rules) > 100
    steps = [changes.abort(seen(rule=rule, launched=True), ANN, "r" * 100) for rule in rules[:300]]
    drains = [changes.cluster(f"cluster-{number}", None, ANN, intent="drain") for number in range(50)]
    assert encode(after(*steps, *drains, orders=orders))


def test_a_mark_knows_sections_by_what_they_say() -> None:
    plain = ClusterPolicy(id="eu-1")
    assert mark(None) == ""
    assert mark(plain) == mark(ClusterPolicy(id="eu-1", weight=1.0, tenants=None))
    assert mark(plain) != mark(ClusterPolicy(id="eu-1", weight=0.5))
    assert mark(RULE) != mark(msgspec.structs.replace(RULE, guard=CanaryGuard()))
    assert mark(RULE) == "9b30482cc869", "another release must find the verdicts of this one"


def test_what_is_wanted_of_a_cluster_adds_up_and_vanishes_when_it_is_what_the_policy_says() -> None:
    drained = after(changes.cluster("eu-1", None, ANN, weight=0.5), changes.cluster("eu-1", None, BOB, intent="drain"))
    order = drained.clusters["eu-1"]
    assert (order.intent, order.weight, order.by) == ("drain", 0.5, "bob")
    back = after(
        changes.cluster("eu-1", None, BOB, weight=1.0),
        changes.cluster("eu-1", None, BOB, intent="serve"),
        orders=drained,
    )
    assert back.clusters == {}
    entry = ClusterPolicy(id="eu-1", intent="drain", weight=0.5)
    undrained = after(changes.cluster("eu-1", entry, ANN, intent="serve"))
    assert undrained.clusters["eu-1"].intent == "serve", "the policy drains it: to serve is an order"


def test_an_order_about_an_older_entry_of_the_policy_is_not_added_to() -> None:
    before = after(changes.cluster("eu-1", None, ANN, weight=0.5))
    entry = ClusterPolicy(id="eu-1", weight=0.9)
    assert after(changes.cluster("eu-1", entry, BOB, intent="drain"), orders=before).clusters["eu-1"].weight is None


def test_what_was_said_while_the_store_was_away_does_not_undo_what_was_said_since() -> None:
    newer = after(changes.cluster("eu-1", None, BOB, intent="maintenance"))
    assert changes.cluster("eu-1", None, ANN, intent="drain")(newer, True) == newer
    assert changes.cluster("eu-1", None, ANN, intent="drain")(newer, False) != newer, "in time, the last one wins"
    promoted = after(changes.promote(seen(), BOB))
    assert changes.abort(seen(), ANN, "")(promoted, True) == promoted
    restarted = after(changes.start(seen(), BOB))
    assert changes.abort(seen(), ANN, "")(restarted, True) == restarted
    staged = after(changes.advance(seen(), BOB, 1))
    aborted = changes.abort(seen(), ANN, "")(staged, True)
    assert aborted.canaries["next"].state == "aborted", "a stage decides nothing"


def test_each_start_is_another_run_from_the_first_stage() -> None:
    started = after(changes.advance(seen(), ANN, 1), changes.start(seen(), BOB))
    order = started.canaries["next"]
    assert (order.run, order.stage, order.state, order.began_unix_s, order.rule) == (1, 0, "running", 200.0, None)
    again = after(changes.start(seen(run=1), ANN), orders=started)
    assert again.canaries["next"].run == 2


def test_two_routers_cannot_both_promote() -> None:
    promoted = after(changes.promote(seen(), ANN))
    assert promoted.canaries["next"].reason == "promoted by ann"
    with pytest.raises(SupersededError, match=r"next is promoted by ann .*say it again if you still mean it"):
        after(changes.promote(seen(), BOB), orders=promoted)
    with pytest.raises(SupersededError):
        after(changes.start(seen(), BOB), orders=promoted)
    after(changes.promote(seen(state="promoted"), BOB), orders=promoted)


def test_nobody_promotes_what_a_guard_has_just_condemned_unless_he_has_seen_it() -> None:
    condemned = after(changes.condemn(seen(), ANN, "error rate 50%"))
    with pytest.raises(SupersededError, match=r"aborted by ann since \(error rate 50%\)"):
        after(changes.promote(seen(), BOB), orders=condemned)
    allowed = after(changes.promote(seen(state="aborted"), BOB), orders=condemned)
    assert allowed.canaries["next"].state == "promoted"


def test_a_rule_with_one_target_cannot_be_promoted() -> None:
    alone = msgspec.structs.replace(RULE, targets=RULE.targets[:1], plan=())
    with pytest.raises(ValueError, match="nothing to promote"):
        after(changes.promote(seen(rule=alone), ANN))


def test_a_guard_speaks_of_the_run_it_watched_and_only_while_nobody_has_decided() -> None:
    restarted = after(changes.start(seen(), ANN))
    assert after(changes.condemn(seen(), BOB, "slow"), orders=restarted) == restarted
    promoted = after(changes.promote(seen(), ANN))
    assert after(changes.condemn(seen(), BOB, "slow"), orders=promoted) == promoted
    condemned = after(changes.condemn(seen(run=1), BOB, "slow"), orders=restarted)
    assert (condemned.canaries["next"].state, condemned.canaries["next"].reason) == ("aborted", "slow")
    assert after(changes.condemn(seen(run=1), ANN, "late"), orders=condemned) == condemned


def test_an_operators_abort_needs_nobodys_leave() -> None:
    for orders in (after(changes.promote(seen(), ANN)), after(changes.start(seen(), ANN)), NOTHING):
        order = after(changes.abort(seen(), BOB, "wrong answers"), orders=orders).canaries["next"]
        assert (order.state, order.reason) == ("aborted", "wrong answers")
    aborted = after(changes.abort(seen(), ANN, ""))
    assert after(changes.abort(seen(), BOB, "me too"), orders=aborted) == aborted, "the first reason stays"


def test_stages_only_go_up_and_only_within_a_run() -> None:
    second = after(changes.advance(seen(), ANN, 1))
    assert second.canaries["next"].stage == 1
    assert second.canaries["next"].began_unix_s == 50.0
    assert after(changes.advance(seen(), BOB, 1), orders=second) == second
    restarted = after(changes.start(seen(), ANN), orders=second)
    assert after(changes.advance(seen(), BOB, 1), orders=restarted) == restarted


def test_a_launched_rule_keeps_its_words_through_every_verdict_until_it_is_removed() -> None:
    launched = after(changes.launch(RULE, ANN))
    mine = seen(launched=True, run=1)
    aborted = after(changes.abort(mine, ANN, ""), orders=launched)
    assert aborted.canaries["next"].rule == RULE
    again = after(changes.launch(RULE, BOB), orders=aborted)
    assert (again.canaries["next"].run, again.canaries["next"].state) == (2, "running")
    removed = after(changes.remove("next", listed=False), orders=again)
    assert removed.canaries == {}
    with pytest.raises(SupersededError, match="was removed or replaced meanwhile"):
        after(changes.promote(mine, BOB), orders=removed)
    assert after(changes.abort(mine, BOB, ""), orders=removed) == removed
    with pytest.raises(ValueError, match="no canary called next"):
        after(changes.remove("next", listed=False), orders=removed)
    with pytest.raises(ValueError, match="is in the policy"):
        after(changes.remove("next", listed=True), orders=again)


def test_an_order_about_another_version_of_a_rule_gives_way_to_one_about_this() -> None:
    changed = msgspec.structs.replace(RULE, guard=CanaryGuard())
    old = after(changes.abort(seen(), ANN, ""))
    new = after(changes.promote(seen(rule=changed), BOB), orders=old).canaries["next"]
    assert (new.of, new.state) == (mark(changed), "promoted")


def test_a_document_that_lost_a_run_is_given_it_back_and_one_that_did_not_keeps_its_own() -> None:
    first = after(changes.abort(seen(), ANN, ""))
    second = after(changes.start(seen(state="aborted"), BOB), orders=first)
    assert after(changes.remember(second, lost=True), orders=first) == second
    assert after(changes.remember(second, lost=False), orders=first) == first
    assert after(changes.remember(first, lost=True), orders=second) == second
    assert after(changes.remember(second, lost=False), orders=NOTHING) == NOTHING, "taken away, not lost"


@pytest.mark.parametrize("number", [0, 10**12 + 1, 2**63, 10**30])
def test_limits_that_a_store_cannot_count_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="requests_per_min"):
        decode(b'{"limits":{"a":{"requests_per_min":%d,"by":"x","at_unix_s":1}}}' % number)
    with pytest.raises(ValueError, match="requests_per_min"):
        overridden(LimitRule(name="a", requests_per_min=1), {"requests_per_min": number})


def test_limits_are_set_and_given_back() -> None:
    changed = after(changes.limit("r", {"tokens_per_min": 7}, ANN))
    assert changed.limits["r"].numbers == {"tokens_per_min": 7}
    assert after(changes.limit("r", None, BOB), orders=changed).limits == {}
