"""The totals of all replicas: every request once, whatever was told twice, lost, or told by one that has ended."""

import asyncio
import contextlib

import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st

from gir.account.fleet import BATCH_ROWS, RETELL_S, TELL_S, FleetUsage, UsageStoreError
from gir.account.ledger import UsageLedger
from gir.admin.usage import UsageApi
from gir.clock import ManualClock
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, TenantId
from gir.model.outcome import Outcome
from gir.model.request import Usage
from gir.tasks import TaskSet
from tests.support.limiting import LoopClock
from tests.support.telling import FakeUsageStore


class Replica:
    """A ledger, and what tells of it."""

    def __init__(self, store: FakeUsageStore, name: str, clock: ManualClock | LoopClock | None = None) -> None:
        clock = clock or ManualClock()
        self.changes: list[tuple[bool, str]] = []
        self.ledger = UsageLedger(since_wall_s=clock.wall_s())
        self.fleet = FleetUsage(
            self.ledger, store, replica=name, clock=clock, on_change=lambda ok, why: self.changes.append((ok, why))
        )

    def serve(self, tenant: str = "team", tokens: int = 7, model: str = "llama") -> None:
        account = self.ledger.open(TenantId(tenant), ModelId(model))
        account.settle(Outcome.COMPLETED, Usage(prompt_tokens=tokens, completion_tokens=1))


steps = st.one_of(
    st.tuples(st.just("serve"), st.integers(0, 2), st.sampled_from("ab"), st.integers(0, 99)),
    st.tuples(st.just("tell"), st.integers(0, 2), st.sampled_from([None, "away", "mute"]), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 2), st.just(""), st.just(0)),
)


@pytest.mark.slow
@given(plan=st.lists(steps, max_size=40))
def test_the_sum_holds_every_request_once(plan: list[tuple[str, int, str | None, int]]) -> None:
    asyncio.run(played(plan))


async def played(plan: list[tuple[str, int, str | None, int]]) -> None:
    store, names = FakeUsageStore(), iter(range(1_000))
    replicas = [Replica(store, f"r{next(names)}") for _ in range(3)]
    served: dict[str, tuple[int, int]] = {}
    for what, number, word, tokens in plan:
        replica = replicas[number]
        if what == "serve":
            assert word is not None
            replica.serve(word, tokens)
            count, total = served.get(word, (0, 0))
            served[word] = (count + 1, total + tokens)
        elif what == "tell":
            store.fault = word
            with contextlib.suppress(UsageStoreError):
                await replica.fleet.tell()
            store.fault = None
        else:
            await replica.fleet.close()
            replicas[number] = Replica(store, f"r{next(names)}")
    for replica in replicas[1:]:
        await replica.fleet.tell()
    totals = await replicas[0].fleet.read()
    assert {row.tenant: (row.requests, row.prompt_tokens) for row in totals.rows} == served


async def test_only_what_has_changed_is_told_in_bounded_calls() -> None:
    store = FakeUsageStore()
    replica = Replica(store, "one")
    for number in range(BATCH_ROWS + 10):
        replica.serve(model=f"m{number}")
    await replica.fleet.tell()
    assert (store.calls, store.rows) == (2, BATCH_ROWS + 10)
    replica.serve(model="m3")
    await replica.fleet.tell()
    assert (store.calls, store.rows) == (3, BATCH_ROWS + 11)
    await replica.fleet.tell()
    assert (store.calls, store.rows) == (4, BATCH_ROWS + 11), "an idle replica only says that it lives"


@pytest.mark.looptime(noop_cycles=2)
async def test_it_tells_by_itself_and_makes_good_what_the_store_forgot() -> None:
    store, failures = FakeUsageStore(), []
    tasks = TaskSet(lambda _, error: failures.append(error))
    replica, reader = Replica(store, "one", LoopClock()), Replica(store, "two", LoopClock())
    replica.fleet.start(tasks)
    replica.serve()
    await asyncio.sleep(TELL_S)
    assert (await reader.fleet.read()).rows[0].requests == 1
    store.held.clear()
    await asyncio.sleep(RETELL_S + TELL_S)
    assert (await reader.fleet.read()).rows[0].requests == 1
    store.fault = "away"
    replica.serve()
    await asyncio.sleep(30.0)
    assert replica.changes == [(False, "away")], "one line for one outage"
    store.fault = None
    await asyncio.sleep(TELL_S)
    assert replica.changes == [(False, "away"), (True, "")]
    assert (await reader.fleet.read()).rows[0].requests == 2
    await tasks.close()
    replica.serve()
    await replica.fleet.close()
    assert store.closed
    assert (await reader.fleet.read()).rows[0].requests == 3, "the last totals of one that ends in order"
    assert not failures


async def test_what_is_read_is_a_copy_of_the_rows_that_still_grow() -> None:
    replica = Replica(FakeUsageStore(), "one")
    replica.serve()
    before = await replica.fleet.read()
    replica.serve()
    assert before.replicas[0].rows[0].requests == 1


async def test_replicas_that_share_nothing_do_not_pretend_to_know_the_fleet() -> None:
    api = UsageApi(UsageLedger(since_wall_s=0.0))
    with pytest.raises(RequestError, match=r"store\.kind is memory") as caught:
        await api.usage(make_mocked_request("GET", "/admin/usage?scope=fleet"))
    assert caught.value.kind is ErrorKind.BAD_REQUEST
