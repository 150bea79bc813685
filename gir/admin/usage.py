"""`/admin/usage`: who used how much, as JSON or CSV. Totals of this replica since it started; add up the replicas."""

from aiohttp import web

from gir.account.ledger import UsageLedger, to_csv
from gir.model.errors import ErrorKind, RequestError
from gir.telemetry.admin import json_response


class UsageApi:
    """Handlers over the ledger."""

    def __init__(self, ledger: UsageLedger) -> None:
        self._ledger = ledger

    def routes(self) -> list[web.RouteDef]:
        """Routes to add to the admin application."""
        return [web.get("/admin/usage", self.usage)]

    async def usage(self, request: web.Request) -> web.Response:
        """Rows by tenant and model (`by=tenant` adds the models up; `tenant=T` picks one; `format=csv`)."""
        by, form = request.query.get("by", "model"), request.query.get("format", "json")
        if by not in ("tenant", "model") or form not in ("json", "csv"):
            raise RequestError(ErrorKind.BAD_REQUEST, "use by=tenant or by=model, format=json or format=csv")
        tenant = request.query.get("tenant")
        rows = self._ledger.by_tenant() if by == "tenant" else self._ledger.rows()
        chosen = [row for row in rows if tenant is None or row.tenant == tenant]
        if form == "csv":
            return web.Response(text=to_csv(chosen), content_type="text/csv", charset="utf-8")
        return json_response({"since_unix_s": self._ledger.since_wall_s, "rows": chosen})
