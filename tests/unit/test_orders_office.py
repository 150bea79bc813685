"""Every answer to a command says how far it reaches."""

from pathlib import Path
from typing import Any

import pytest

from gir.cli.client import orders_line
from gir.clock import ManualClock
from gir.control import changes
from gir.control.changes import Voice
from gir.model.errors import ErrorKind, RequestError
from gir.stores.orders_file import FileOrders
from gir.stores.orders_memory import MemoryOrders
from gir.stores.orders_redis import RedisOrders
from tests.support.orders import Desk, ShakyOrders, office

DRAIN = changes.cluster("eu-1", None, Voice("ann", 1.0), intent="drain")


@pytest.mark.parametrize(
    ("kind", "company", "shared_by", "note"),
    [
        ("memory", {}, "this process, until it stops", ""),
        ("memory", {"routers": 1}, "this process, until it stops", ""),
        ("memory", {"workers": 2}, "this process, until it stops", "there are 2 routers"),
        ("memory", {"routers": 3}, "this process, until it stops", "there are 3 routers"),
        ("file", {"lasting": True}, "this router, also after a restart", ""),
        ("file", {"workers": 2, "routers": 2}, "the 2 workers of this router, until it stops", ""),
        ("file", {"workers": 2, "routers": 4, "lasting": True}, "the 2 workers of this router, also", "there are 4"),
        ("redis", {"workers": 2, "routers": 8}, "every router that uses this Redis", ""),
    ],
)
def test_where_orders_are_kept_and_who_does_not_hear_of_them(
    kind: str, company: dict[str, Any], shared_by: str, note: str, tmp_path: Path
) -> None:
    store = {"memory": MemoryOrders, "file": lambda: FileOrders(tmp_path), "redis": lambda: RedisOrders("redis://h")}
    desk = Desk(store[kind]())
    where = office(desk, ManualClock(), **company).where()
    assert where["kept"] == kind
    assert where["shared_by"].startswith(shared_by)
    assert where["note"].startswith(note)
    assert where["everywhere"] is (not note)
    assert bool(note) is ("set store.kind to redis, or tell each of them" in where["note"])
    line = orders_line(where)
    assert line.startswith("orders: in memory, " if kind == "memory" else f"orders: {kind} ")
    assert f"known to {where['shared_by']}" in line


async def test_a_command_that_others_do_not_hear_of_says_so() -> None:
    clock = ManualClock()
    assert await office(Desk(), clock).command(DRAIN) == {"everywhere": True, "note": ""}
    applied = await office(Desk(), clock, workers=2).command(DRAIN)
    assert applied["everywhere"] is False
    assert applied["note"].startswith("applied here only: there are 2 routers")


async def test_while_the_store_is_away_only_what_cannot_wait_is_done() -> None:
    shaky = ShakyOrders(MemoryOrders())
    shaky.away = True
    desk = Desk(shaky)
    desk_office = office(desk, ManualClock())
    with pytest.raises(RequestError, match="so no other router would hear of it") as refused:
        await desk_office.command(DRAIN)
    assert refused.value.kind is ErrorKind.NO_CAPACITY
    assert not desk.orders
    applied = await desk_office.command(DRAIN, at_once=True)
    assert applied["note"].startswith("applied here only: the store is away (no answer within 50 ms)")
    assert desk.orders.clusters["eu-1"].intent == "drain"
    where = desk_office.where()
    assert (where["up"], where["untold"]) == (False, 1)
    assert "AWAY: no answer within 50 ms; 1 not told yet" in orders_line(where)
    shaky.away = False
    await desk.look()
    assert "AWAY" not in orders_line(desk_office.where())


async def test_a_change_that_makes_no_sense_is_the_callers_mistake() -> None:
    with pytest.raises(RequestError, match="no canary called absent") as refused:
        await office(Desk(), ManualClock()).command(changes.remove("absent", listed=False))
    assert refused.value.kind is ErrorKind.BAD_REQUEST
