"""`/admin/usage`: who used how much, as JSON or CSV; of this replica since it started, or of the fleet."""

from typing import Any

from aiohttp import web

from gir.account.fleet import FleetUsage, UsageStoreError
from gir.account.ledger import ALL_MODELS, UsageLedger, UsageRow, added_up, to_csv
from gir.model.errors import ErrorKind, RequestError
from gir.telemetry.admin import json_response

_CHOICES = {"by": ("model", "tenant"), "format": ("json", "csv"), "scope": ("replica", "fleet")}


class UsageApi:
    """Handlers over the ledger; `fleet` None when the replicas share no store."""

    def __init__(self, ledger: UsageLedger, fleet: FleetUsage | None = None) -> None:
        self._ledger = ledger
        self._fleet = fleet

    def routes(self) -> list[web.RouteDef]:
        """Routes to add to the admin application."""
        return [web.get("/admin/usage", self.usage)]

    async def usage(self, request: web.Request) -> web.Response:
        """Rows by tenant and model; `by=tenant` adds models up, `tenant=T` picks one; `scope=fleet`, `format=csv`."""
        asked = {name: request.query.get(name, choices[0]) for name, choices in _CHOICES.items()}
        for name, value in asked.items():
            if value not in _CHOICES[name]:
                raise RequestError(
                    ErrorKind.BAD_REQUEST, f"{name} is {value[:20]!r}; use {' or '.join(_CHOICES[name])}"
                )
        tenant = request.query.get("tenant")
        whole, rows = await self._of_fleet() if asked["scope"] == "fleet" else self._of_replica()
        rows = [row for row in rows if tenant is None or row.tenant == tenant]
        if asked["by"] == "tenant":
            rows = added_up(rows, model_of=lambda _: ALL_MODELS)
        if asked["format"] == "csv":
            return web.Response(text=to_csv(rows), content_type="text/csv", charset="utf-8")
        return json_response({**whole, "rows": rows})

    def _of_replica(self) -> tuple[dict[str, Any], list[UsageRow]]:
        return {"since_unix_s": self._ledger.since_wall_s}, self._ledger.rows()

    async def _of_fleet(self) -> tuple[dict[str, Any], list[UsageRow]]:
        if self._fleet is None:
            message = "store.kind is memory, so replicas do not know of each other; set redis, or add up the replicas"
            raise RequestError(ErrorKind.BAD_REQUEST, message)
        try:
            totals = await self._fleet.read()
        except UsageStoreError as error:
            message = f"the shared store cannot be read ({error}); scope=replica needs none"
            raise RequestError(ErrorKind.NO_CAPACITY, message, retry_after_s=5.0) from None
        replicas = [
            {
                "replica": one.replica,
                "since_unix_s": one.since_unix_s,
                "told_unix_s": one.told_unix_s,
                "requests": sum(row.requests for row in one.rows),
            }
            for one in totals.replicas
        ]
        since_unix_s = min(one.since_unix_s for one in totals.replicas)
        return {"since_unix_s": since_unix_s, "replicas": replicas}, totals.rows
