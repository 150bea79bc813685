"""The desk: the newest orders are in force, whatever the store does; nothing that was said is lost or said twice."""

import asyncio

import pytest

from gir.admit.ports import StoreError
from gir.control import changes
from gir.control.changes import Seen, Voice
from gir.control.orders import TRIES_MAX, VERSION_MAX, Kept
from gir.model.orders import Orders, encode
from gir.stores.orders_file import COPY, FileOrders
from gir.stores.orders_memory import MemoryOrders
from tests.support.orders import Desk, ShakyOrders
from tests.unit.test_orders import RULE

ANN, BOB = Voice("ann", 100.0), Voice("bob", 200.0)


def drain(cluster: str, voice: Voice = ANN) -> changes.Change:
    return changes.cluster(cluster, None, voice, intent="drain")


def serve(cluster: str, voice: Voice = BOB) -> changes.Change:
    return changes.cluster(cluster, None, voice, intent="serve")


def drained(desk: Desk) -> list[str]:
    """Clusters that are to be drained, as the desk's router was last told."""
    return sorted(desk.followed[-1].clusters) if desk.followed else []


async def test_a_change_at_one_desk_is_in_force_at_the_others_after_their_next_look() -> None:
    store = MemoryOrders()
    here, there = Desk(store), Desk(store)
    await here.change(drain("eu-1"))
    assert drained(here) == ["eu-1"]
    assert drained(there) == []
    await there.look()
    assert drained(there) == ["eu-1"]
    assert here.version == there.version == 1
    await there.look()
    assert len(there.followed) == 1, "the same orders are not carried out again"


async def test_a_change_is_worked_out_again_when_somebody_was_faster() -> None:
    store = MemoryOrders()
    shaky, there = ShakyOrders(store), Desk(store)
    here = Desk(shaky)
    faster = encode(drain("us-1")(Orders(), False))

    def someone() -> None:
        store._kept = Kept(1, faster)

    shaky.hook = someone
    await here.change(drain("eu-1"))
    await there.look()
    assert drained(here) == drained(there) == ["eu-1", "us-1"]
    assert here.version == 2


async def test_a_store_that_changes_without_end_is_given_up() -> None:
    store = MemoryOrders()
    shaky = ShakyOrders(store)

    def someone() -> None:
        store._kept = Kept(store._kept.version + 1, encode(drain(f"c-{store._kept.version}")(Orders(), False)))
        shaky.hook = someone

    shaky.hook = someone
    with pytest.raises(StoreError, match=f"changed {TRIES_MAX} times"):
        await Desk(shaky).change(drain("eu-1"))


async def test_a_change_that_changes_nothing_makes_no_version() -> None:
    desk = Desk()
    await desk.change(serve("eu-1"))
    assert desk.version == 0
    assert desk.followed == []


async def test_what_cannot_be_is_refused_and_touches_nothing() -> None:
    desk = Desk()
    with pytest.raises(ValueError, match="no canary called"):
        await desk.change(changes.remove("absent", listed=False))
    with pytest.raises(ValueError, match="weight"):
        await desk.change(changes.cluster("eu-1", None, ANN, weight=7.0))
    assert (desk.version, desk.followed) == (0, [])


@pytest.mark.parametrize("version", [-1, VERSION_MAX, 10**30])
async def test_a_version_that_cannot_be_counted_on_is_refused(version: int) -> None:
    store = MemoryOrders()
    desk = Desk(store)
    await desk.change(drain("eu-1"))
    store._kept = Kept(version, encode(Orders()))
    await desk.look()
    assert f"version {version} is refused" in desk.trouble
    assert drained(desk) == ["eu-1"]


async def test_while_the_store_is_away_the_last_orders_stay_and_commands_are_refused() -> None:
    shaky = ShakyOrders(MemoryOrders())
    desk = Desk(shaky)
    await desk.change(drain("eu-1"))
    shaky.away = True
    await desk.look()
    await desk.look()
    with pytest.raises(StoreError):
        await desk.change(drain("us-1"))
    assert drained(desk) == ["eu-1"]
    assert desk.trouble == "no answer within 50 ms"
    shaky.away = False
    await desk.look()
    assert desk.trouble == ""
    assert [up for up, _ in desk.watcher.changes] == [False, True], "told once for each change"


async def test_what_cannot_wait_holds_at_once_and_is_told_when_the_store_is_back() -> None:
    store = MemoryOrders()
    shaky, there = ShakyOrders(store), Desk(store)
    here = Desk(shaky)
    shaky.away = True
    here.insist(drain("eu-1"))
    await here.look()
    assert drained(here) == ["eu-1"]
    assert here.untold == 1
    await there.change(drain("us-1"))
    shaky.away = False
    await here.look()
    await there.look()
    assert here.untold == 0
    assert drained(here) == drained(there) == ["eu-1", "us-1"]
    assert all("eu-1" in orders.clusters for orders in here.followed), "not even for a moment in between"


async def test_what_was_said_here_alone_gives_way_to_what_was_said_since_everywhere() -> None:
    store = MemoryOrders()
    shaky, there = ShakyOrders(store), Desk(store)
    here = Desk(shaky)
    shaky.away = True
    here.insist(drain("eu-1", ANN))
    await there.change(changes.cluster("eu-1", None, BOB, intent="maintenance"))
    shaky.away = False
    await here.look()
    assert here.orders == there.orders
    assert here.orders.clusters["eu-1"].intent == "maintenance"


async def test_a_word_that_clocks_make_older_than_the_last_one_is_taken_back_here_too() -> None:
    store = MemoryOrders()
    shaky = ShakyOrders(store)
    here = Desk(shaky)
    await Desk(store).change(changes.cluster("eu-1", None, BOB, intent="maintenance"))
    await here.look()
    shaky.away = True
    here.insist(drain("eu-1", ANN))
    assert here.orders.clusters["eu-1"].intent == "drain"
    shaky.away = False
    await here.look()
    assert here.orders.clusters["eu-1"].intent == "maintenance"


@pytest.mark.parametrize("text", [b"{", b'{"format":9}', b'{"format":1,"clusters":7}'])
async def test_a_document_that_is_refused_leaves_the_last_good_one_and_is_looked_at_again(text: bytes) -> None:
    store = MemoryOrders()
    desk = Desk(store)
    await desk.change(drain("eu-1"))
    good = store._kept.text
    store._kept = Kept(2, text)
    await desk.look()
    await desk.look()
    assert drained(desk) == ["eu-1"]
    assert "version 2 is refused" in desk.trouble
    assert len(desk.watcher.changes) == 1
    with pytest.raises(StoreError, match="is refused"):
        await desk.change(drain("us-1"))
    store._kept = Kept(3, good)
    await desk.look()
    assert (desk.trouble, desk.version) == ("", 3)


async def test_a_store_that_was_emptied_is_given_back_what_was_known() -> None:
    store = MemoryOrders()
    here, there = Desk(store), Desk(store)
    for cluster in ("eu-1", "us-1"):
        await here.change(drain(cluster))
    await there.look()
    store._kept = Kept()
    await there.look()
    await here.look()
    assert drained(here) == drained(there) == ["eu-1", "us-1"]
    assert (store._kept.version, here.version, there.version) == (1, 1, 1)
    assert len(here.followed) == 2, "not even for a moment in between"
    assert here.watcher.versions[-1] == there.watcher.versions[-1] == 1, "what is shown can be compared"


async def test_a_document_by_a_number_that_was_lost_is_taken_together_with_what_is_known() -> None:
    """A failover can lose a version, and somebody may have written another by that number."""
    store = MemoryOrders()
    here, there = Desk(store), Desk(store)
    await here.change(drain("eu-1", ANN))
    store._kept = Kept(1, encode(drain("us-1")(serve("eu-1")(Orders(), False), False)))
    await here.look()
    await there.look()
    assert drained(here) == drained(there) == ["eu-1", "us-1"]


async def test_of_two_words_about_the_same_thing_a_store_that_lost_something_gets_the_later() -> None:
    for voice, wanted in ((ANN, "maintenance"), (Voice("cid", 300.0), "drain")):
        store = MemoryOrders()
        here = Desk(store)
        await here.change(drain("eu-1", voice))
        text = encode(changes.cluster("eu-1", None, BOB, intent="maintenance")(Orders(), False))
        store._kept = Kept(1, text)
        await here.look()
        assert here.orders.clusters["eu-1"].intent == wanted


async def test_a_verdict_is_not_lost_with_the_version_that_brought_it() -> None:
    """The store loses it, and a router that had not heard of it yet is the first to give back what it knows."""
    store = MemoryOrders()
    first, lagging = Desk(store), Desk(store)
    seen = Seen(rule=RULE, launched=False, run=0, state="running", began_unix_s=1.0)
    await first.change(changes.advance(seen, ANN, 1))
    await lagging.look()
    await first.change(changes.condemn(seen, ANN, "slow"))
    store._kept = Kept()
    await lagging.look()
    await lagging.change(drain("eu-1"))
    await lagging.change(drain("us-1"))
    for desk in (first, lagging):
        await desk.look()
    for desk in (first, lagging):
        assert desk.orders.canaries["next"].state == "aborted"
        assert drained(desk) == ["eu-1", "us-1"]
    assert [orders.canaries["next"].state for orders in first.followed] == ["running", "aborted", "aborted"]


async def test_a_router_that_starts_while_the_store_is_away_begins_with_the_copy(tmp_path) -> None:
    store, copy = MemoryOrders(), FileOrders(tmp_path, COPY)
    await Desk(store, copy=copy).change(drain("eu-1"))
    shaky = ShakyOrders(store)
    shaky.away = True
    desk = Desk(shaky, copy=copy)
    await desk.open()
    assert drained(desk) == ["eu-1"]
    assert desk.trouble
    shaky.away = False
    await Desk(store).change(drain("us-1"))
    await desk.look()
    assert drained(desk) == ["eu-1", "us-1"]


async def test_a_copy_that_cannot_be_used_is_said_and_stops_nothing(tmp_path) -> None:
    (tmp_path / COPY).write_text("{")
    shaky = ShakyOrders(MemoryOrders())
    shaky.away = True
    desk = Desk(shaky, copy=FileOrders(tmp_path, COPY))
    await desk.open()
    assert "damaged" in desk.watcher.copies_failed[0]
    (tmp_path / "state").write_text("no directory")
    other = Desk(copy=FileOrders(tmp_path / "state", COPY))
    await other.change(drain("eu-1"))
    assert drained(other) == ["eu-1"]
    assert len(other.watcher.copies_failed) == 1


async def test_waking_up_does_not_wait_for_the_next_poll() -> None:
    store = MemoryOrders()
    desk = Desk(store)
    running = asyncio.create_task(desk.run())
    await asyncio.sleep(0)
    desk.insist(drain("eu-1"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert store._kept.version == 1
    running.cancel()


async def test_a_last_word_is_told_on_the_way_out() -> None:
    store = MemoryOrders()
    desk = Desk(store)
    desk.insist(drain("eu-1"))
    await desk.close()
    assert store._kept.version == 1
