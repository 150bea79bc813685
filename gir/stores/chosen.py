"""Which stores a configuration asks for. Redis is imported only where it is used."""

import secrets
from collections.abc import Callable
from pathlib import Path

from gir.account.fleet import FleetUsage
from gir.account.ledger import UsageLedger
from gir.admit.ports import LimitStore
from gir.clock import Clock
from gir.control.config import RouterConfig, StoreSection
from gir.control.orders import OrderStore
from gir.stores.memory import MemoryStore
from gir.stores.orders_file import COPY, FileOrders
from gir.stores.orders_memory import MemoryOrders


def limit_store(section: StoreSection, clock: Clock) -> LimitStore:
    """Where limits are counted."""
    if section.kind == "memory" or section.url is None:
        return MemoryStore(clock)
    from gir.stores.redis import RedisStore

    return RedisStore(section.url.read("store.url"), prefix=section.prefix)


def fleet_usage(
    config: RouterConfig, ledger: UsageLedger, clock: Clock, on_change: Callable[[bool, str], None]
) -> FleetUsage | None:
    """What lets any replica tell the usage of all; None when they share no store."""
    section = config.store
    if section.kind == "memory" or section.url is None:
        return None
    from gir.stores.usage_redis import RedisUsage

    # The random part makes it unique, as processes of one host share their name.
    replica = f"{config.name or config.listen}#{secrets.token_hex(4)}"
    store = RedisUsage(section.url.read("store.url"), prefix=section.prefix)
    return FleetUsage(ledger, store, replica=replica, clock=clock, on_change=on_change)


def order_store(section: StoreSection, directory: Path | None) -> OrderStore:
    """Where operators' orders are kept: with the limits, or else in a directory of this host if there is one."""
    if section.kind == "redis" and section.url is not None:
        from gir.stores.orders_redis import RedisOrders

        return RedisOrders(section.url.read("store.url"), prefix=section.prefix)
    return MemoryOrders() if directory is None else FileOrders(directory)


def order_copy(section: StoreSection, directory: Path | None) -> FileOrders | None:
    """What to start from while Redis is away; None without Redis or a directory."""
    return FileOrders(directory, COPY) if section.kind == "redis" and directory is not None else None
