"""Defects of placement and accounting: wrong places, wrong sums, wrong order."""

from typing import Any

import msgspec

from chaos.sim.bugs import Bug
from gir import scope as scope_module
from gir.admit import flow
from gir.admit.lease import RateLease
from gir.admit.limits import Limiter
from gir.health.record import ClusterRecord
from gir.model.request import Usage
from gir.place import roster
from gir.scope import Scope


def _spendthrift(settle: Any) -> Any:
    def keep(limiter: Limiter, reservation: Any, usage: Any, *, started: bool, now_s: float) -> None:
        if started:
            settle(limiter, reservation, usage, started=started, now_s=now_s)

    return keep


def _anywhere(lasting: Any) -> Any:
    def pass_over(state: Any, pool: Any, kind: Any, index: Any, fail_open: Any) -> bool:
        passed: bool = lasting(state, pool, msgspec.structs.replace(kind, regions=None), index, fail_open)
        return passed

    return pass_over


def _newest_policy(following: Any) -> Any:
    def follow(self: Scope, tried: Any) -> Any:
        self.policy = self._stages.policies.current
        return following(self, tried)

    return follow


BUGS = (
    Bug(
        name="usage-invented",
        what="a request is charged for what it asked for, not for what it got",
        target=scope_module,
        attribute="delivered_usage",
        replace=lambda _: lambda *_, **__: Usage(prompt_tokens=1, completion_tokens=1_000),
        finding="I3",
    ),
    Bug(
        name="reservation-kept",
        what="a request that failed before its first token keeps its reservation",
        target=Limiter,
        attribute="settle",
        replace=_spendthrift,
        finding="I2",
        seeds=120,
    ),
    Bug(
        name="limits-ignored",
        what="units are checked and not used up",
        target=RateLease,
        attribute="spend",
        replace=lambda _: lambda lease, *_: lease.stamp,
        first=50,
        finding="I8",
        seeds=200,
    ),
    Bug(
        name="drained-cluster-used",
        what="what the policy says of a cluster is not obeyed",
        target=ClusterRecord,
        attribute="obey",
        replace=lambda _: lambda *_: None,
        finding="I7",
        faults=frozenset({"policy"}),
    ),
    Bug(
        name="residency-ignored",
        what="a tenant's requests leave the Regions they must not leave",
        target=roster,
        attribute="lasting",
        replace=_anywhere,
        finding="I7",
    ),
    Bug(
        name="policy-not-atomic",
        what="a request changes to a new policy in the middle",
        target=Scope,
        attribute="next",
        replace=_newest_policy,
        first=46,
        finding="I6",
        faults=frozenset({"policy", "freeze", "crash"}),
        seeds=200,
    ),
    Bug(
        name="sheddable-first",
        what="less important requests are let in while better ones are turned away",
        target=flow,
        attribute="HOLD_OFF_S",
        replace=lambda _: -1.0,
        test="tests.unit.test_flow_rules:"
        "test_sheddable_stays_out_while_anybody_waits_and_for_a_second_after_a_better_one_was_shed",
    ),
)
