"""Flow control under any interleaving: nobody lost, nobody twice, bounds kept, classes never overtaken."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gir.admit.flow import HOLD_OFF_S, FlowControl
from gir.admit.ticket import Action, Refused, State, Ticket
from gir.model.policy import FlowPolicy
from tests.support.flowing import CRITICAL, SHEDDABLE, STANDARD, Slots, ticket

POLICY = FlowPolicy(queue_max=6, queue_bytes_max=120, wait_max_s=8.0, aging_s=3.0, critical_reserve=0.25)
classes = st.sampled_from([CRITICAL, STANDARD, SHEDDABLE])


class FlowMachine(RuleBasedStateMachine):
    """Two pools whose slots come and go."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.flow = FlowControl(POLICY)
        self.slots = {"llama": Slots(4), "qwen": Slots(2)}
        self.all: list[Ticket] = []
        self.reserved: list[Ticket] = []
        self.running: list[Ticket] = []
        self.refused: set[Ticket] = set()
        self.shed_s = dict.fromkeys(self.slots, float("-inf"))

    @rule(
        criticality=classes,
        pool=st.sampled_from(["llama", "qwen"]),
        tenant=st.sampled_from("abc"),
        tokens=st.sampled_from([1, 500, 100_000]),
        body_bytes=st.integers(0, 60),
        patience_s=st.floats(0.1, 20.0),
    )
    def arrive(self, criticality, pool: str, tenant: str, tokens: int, body_bytes: int, patience_s: float) -> None:  # type: ignore[no-untyped-def]
        one = ticket(
            criticality,
            self.slots[pool],
            pool=pool,
            tenant=tenant,
            tokens=tokens,
            body_bytes=body_bytes,
            deadline_s=self.now_s + patience_s,
        )
        self.all.append(one)
        waiting = [other for other in self.all if other.state is State.WAITING and other.pool == pool]
        verdict = self.flow.arrive(one, self.now_s)
        if verdict.action is Action.ADMIT:
            self.reserved.append(one)
            self.promises_fit(pool)
            if criticality is SHEDDABLE:
                assert not waiting, "a sheddable request overtook one that waits"
                assert self.now_s >= self.shed_s[pool] + HOLD_OFF_S, "a sheddable request got in right after a shed"
        if criticality is SHEDDABLE:
            assert verdict.action is not Action.WAIT
        self.apply(verdict.admitted, verdict.refused)

    @rule(pick=st.integers(0, 20))
    def count(self, pick: int) -> None:
        if self.reserved:
            one = self.reserved.pop(pick % len(self.reserved))
            self.slots[one.pool].used += 1
            self.flow.taken(one)
            self.running.append(one)

    @rule(pick=st.integers(0, 20))
    def finish(self, pick: int) -> None:
        if self.running:
            one = self.running.pop(pick % len(self.running))
            self.slots[one.pool].used -= 1
            self.apply(self.flow.leave(one, self.now_s).admitted, ())

    @rule(pick=st.integers(0, 60))
    def go_away(self, pick: int) -> None:
        present = [one for one in self.all if one.state in (State.WAITING, State.RESERVED)]
        if present:
            one = present[pick % len(present)]
            if one in self.reserved:
                self.reserved.remove(one)
            self.refused.add(one)
            self.apply(self.flow.leave(one, self.now_s).admitted, ())

    @rule(pool=st.sampled_from(["llama", "qwen"]), total=st.integers(0, 6))
    def change_fleet(self, pool: str, total: int) -> None:
        self.slots[pool].total = total

    @rule(step_s=st.floats(0.01, 4.0))
    def wait(self, step_s: float) -> None:
        self.now_s += step_s
        changes = self.flow.tick(self.now_s)
        self.apply(changes.admitted, changes.refused)
        assert all(one.ends_s > self.now_s for one in self.all if one.state is State.WAITING)

    def apply(self, admitted: tuple[Ticket, ...], refused: tuple[Refused, ...]) -> None:
        for one in admitted:
            assert one.state is State.RESERVED
            assert one not in self.reserved
            self.reserved.append(one)
            self.promises_fit(one.pool)
        for item in refused:
            assert item.ticket.state is State.GONE
            assert item.ticket not in self.refused, "turned away twice"
            self.refused.add(item.ticket)
            assert 1.0 <= item.retry_after_s <= 60.0
            if item.ticket.criticality is not SHEDDABLE:
                self.shed_s[item.ticket.pool] = self.now_s

    @invariant()
    def nobody_is_lost(self) -> None:
        waiting = [one for one in self.all if one.state is State.WAITING]
        assert self.flow.waiting == len(waiting)
        assert self.flow.waiting_bytes == sum(one.body_bytes for one in waiting)
        assert self.flow.in_flight == len(waiting) + len(self.reserved) + len(self.running)
        assert all(one.state is State.RESERVED for one in self.reserved)

    @invariant()
    def bounds_hold(self) -> None:
        assert self.flow.waiting <= POLICY.queue_max
        assert self.flow.waiting_bytes <= POLICY.queue_bytes_max
        assert len(self.flow._ends) <= 2 * POLICY.queue_max + 65

    def promises_fit(self, pool: str) -> None:
        """Whenever somebody is let in: what is used and what is promised are slots that exist."""
        slots = self.slots[pool]
        assert slots.used + sum(one.pool == pool for one in self.reserved) <= slots.total


TestFlowMachine = FlowMachine.TestCase
TestFlowMachine.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestFlowMachine = pytest.mark.slow(TestFlowMachine)
