"""`/admin/limits`: the rules in force, the counters this replica knows, and an operator's hand on the numbers."""

import msgspec
from aiohttp import web

from gir.admin.orders import Office
from gir.admit.limits import Limiter
from gir.clock import Clock
from gir.control import changes
from gir.model.errors import ErrorKind, RequestError
from gir.telemetry.admin import caller, json_response
from gir.telemetry.logs import Logger

COUNTERS_SHOWN = 100
_CHANGEABLE = ("requests_per_min", "tokens_per_min", "concurrency_max")


class LimitsApi:
    """Handlers over the limiter. Changes hold on every router that shares the orders, until they are removed."""

    def __init__(self, limiter: Limiter, office: Office, clock: Clock, log: Logger) -> None:
        self._limiter = limiter
        self._office = office
        self._clock = clock
        self._log = log

    def routes(self) -> list[web.RouteDef]:
        """Routes to add to the admin application."""
        return [
            web.get("/admin/limits", self.show),
            web.put("/admin/limits/{name}", self.change),
            web.delete("/admin/limits/{name}", self.restore),
        ]

    async def show(self, request: web.Request) -> web.Response:
        """Rules, overrides and the fullest counters (`?top=N`)."""
        top = request.query.get("top", str(COUNTERS_SHOWN))
        if not top.isdecimal() or len(top) > 6:
            raise RequestError(ErrorKind.BAD_REQUEST, f"top is {top[:20]!r}; give a number of counters")
        return json_response(
            {
                "limiter": repr(self._limiter),
                "store_up": self._limiter.store_up,
                "rules": self._limiter.rules,
                "overrides": self._limiter.overrides,
                "counters": self._limiter.rows(self._clock.monotonic_s())[: int(top)],
            }
        )

    async def change(self, request: web.Request) -> web.Response:
        """Set numbers of one rule; answers with the rule."""
        try:
            change = msgspec.json.decode(await request.read(), type=dict[str, int])
        except msgspec.DecodeError as error:
            raise RequestError(ErrorKind.BAD_REQUEST, f'body: {error}; send {{"requests_per_min": 60}}') from None
        if not change or not set(change) <= set(_CHANGEABLE):
            raise RequestError(ErrorKind.BAD_REQUEST, f"body has {sorted(change)}; these can be set: {_CHANGEABLE}")
        return await self._override(request.match_info["name"], change)

    async def restore(self, request: web.Request) -> web.Response:
        """Return to the policy's numbers; answers with the rule."""
        return await self._override(request.match_info["name"], None)

    async def _override(self, name: str, change: dict[str, int] | None) -> web.Response:
        if change is not None or name not in self._limiter.overrides:  # what was set may outlive its rule
            try:
                self._limiter.check(name, change)
            except ValueError as error:
                raise RequestError(ErrorKind.BAD_REQUEST, str(error)) from None
        applied = await self._office.command(changes.limit(name, change, self._office.voice()))
        self._log.info("operator", action="limit", limit=name, change=change, by=caller.get())
        rule = next((rule for rule in self._limiter.rules if rule.name == name), None)
        said = {"name": name} if rule is None else msgspec.to_builtins(rule)
        return json_response(said | {"applied": applied})
