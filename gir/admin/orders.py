"""`/admin/orders`, and how a command becomes an order: who hears of it is part of every answer."""

from typing import Any

import msgspec
from aiohttp import web

from gir.admit.ports import StoreError
from gir.clock import Clock
from gir.control.changes import Change, Voice
from gir.control.orders import OrderDesk
from gir.model.errors import ErrorKind, RequestError
from gir.telemetry.admin import caller, json_response

RETRY_S = 5.0
ROUTER, WORKERS = "x-gir-router", "x-gir-workers"


class Company(msgspec.Struct, frozen=True, kw_only=True):
    """This router among the others, as far as it is told."""

    name: str = ""
    workers: int = 1
    """On this host, on the same data port."""
    routers: int = 0
    """Whose beat addresses agents are given; 0 when none are configured."""
    lasting: bool = False
    """The state directory outlives this start."""


class Office:
    """Takes commands to the desk, and says how far they reach."""

    def __init__(self, desk: OrderDesk, clock: Clock, company: Company) -> None:
        self._desk = desk
        self._clock = clock
        self._company = company

    def routes(self) -> list[web.RouteDef]:
        """Routes to add to the admin application."""
        return [web.get("/admin/orders", self.show)]

    async def sign(self, _: web.Request, response: web.StreamResponse) -> None:
        """Say which worker answers, when there are several: most of what is shown is its own."""
        if self._company.workers > 1:
            response.headers[ROUTER] = self._company.name
            response.headers[WORKERS] = str(self._company.workers)

    async def show(self, _: web.Request) -> web.Response:
        """What operators have ordered, where that is kept, and who shares it."""
        return json_response(self.where() | {"orders": self._desk.orders})

    def voice(self) -> Voice:
        """Whoever is calling, now."""
        return Voice(caller.get("local"), self._clock.wall_s())

    async def command(self, change: Change, *, at_once: bool = False) -> dict[str, Any]:
        """Carry out `change`; answers how far it reaches (`everywhere`, and a `note` when that is not so).

        `at_once`: it holds here even while the store is away, and everywhere later. Raises RequestError.
        """
        try:
            try:
                await self._desk.change(change)
            except StoreError as error:
                if not at_once:
                    raise RequestError(
                        ErrorKind.NO_CAPACITY,
                        f"the store of operators' orders is away ({error}), so no other router would hear of it",
                        retry_after_s=RETRY_S,
                    ) from None
                self._desk.insist(change)
                note = f"applied here only: the store is away ({error}); other routers are told when it is back"
                return {"everywhere": False, "note": note}
        except ValueError as error:
            raise RequestError(ErrorKind.BAD_REQUEST, str(error)) from None
        alone = self._alone()
        return {"everywhere": not alone, "note": alone and f"applied here only: {alone}"}

    def where(self) -> dict[str, Any]:
        """Where orders are kept and who shares them: JSON-able."""
        desk, alone = self._desk, self._alone()
        return {
            "kept": desk.store.kind,
            "place": desk.store.place,
            "shared_by": self._shared_by(),
            "everywhere": not alone,
            "note": alone,
            "up": not desk.trouble,
            "trouble": desk.trouble,
            "version": desk.version,
            "untold": desk.untold,
        }

    def _shared_by(self) -> str:
        workers = self._company.workers
        match self._desk.store.kind:
            case "redis":
                return "every router that uses this Redis"
            case "file":
                those = "this router" if workers == 1 else f"the {workers} workers of this router"
                return f"{those}, also after a restart" if self._company.lasting else f"{those}, until it stops"
            case _:
                return "this process, until it stops"

    def _alone(self) -> str:
        """Why some routers do not hear of commands; '' when all do, as far as this one knows."""
        company, kind = self._company, self._desk.store.kind
        if kind == "redis":
            return ""
        together = company.workers if kind == "file" else 1
        there_are = max(company.workers, company.routers)
        if there_are <= together:
            return ""
        return (
            f"there are {there_are} routers, and what operators order is kept in {self._desk.store.place}; "
            "set store.kind to redis, or tell each of them"
        )
