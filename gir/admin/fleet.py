"""`/admin/clusters`, `/admin/config`, `/admin/models`: what the router knows, and an operator's hand on clusters."""

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from gir.admin.orders import Office
from gir.clock import Clock
from gir.control import changes
from gir.control.config import RouterConfig
from gir.control.policies import Policies
from gir.health.registry import Registry
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ClusterId
from gir.model.orders import IntentName
from gir.model.policy.base import Share
from gir.telemetry.admin import caller, json_response
from gir.telemetry.logs import Logger

_INTENTS: dict[str, IntentName] = {"drain": "drain", "undrain": "serve", "maintenance": "maintenance"}


class _Weight(msgspec.Struct, forbid_unknown_fields=True):
    weight: Share


class FleetApi:
    """Handlers over the registry and the policy in force. `on_change` is called after an operator changed something."""

    def __init__(
        self,
        registry: Registry,
        office: Office,
        policies: Policies,
        config: RouterConfig,
        clock: Clock,
        log: Logger,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self._registry = registry
        self._office = office
        self._policies = policies
        self._config = config
        self._clock = clock
        self._log = log
        self._on_change = on_change

    def routes(self) -> list[web.RouteDef]:
        """Routes to add to the admin application."""
        return [
            web.get("/admin/clusters", self.clusters),
            web.post("/admin/clusters/{cluster}/{action}", self.act),
            web.get("/admin/config", self.config),
            web.get("/admin/models", self.models),
        ]

    async def clusters(self, _: web.Request) -> web.Response:
        """Every cluster with its health, and the fleet in one line."""
        return json_response(
            {
                "fleet": repr(self._registry),
                "view_version": self._registry.view.version,
                "fail_open": self._registry.view.fail_open,
                "clusters": self._registry.rows(self._clock.monotonic_s()),
                "orders": self._office.where(),
            }
        )

    async def act(self, request: web.Request) -> web.Response:
        """Drain, undrain, put into maintenance, or pin the weight; answers with the cluster's row."""
        cluster, action = ClusterId(request.match_info["cluster"]), request.match_info["action"]
        if action != "weight" and action not in _INTENTS:
            allowed = ", ".join([*_INTENTS, "weight"])
            raise RequestError(ErrorKind.NOT_FOUND, f"no action {action!r} on a cluster; there are: {allowed}")
        # One that has not reported yet may still come, and obeys then.
        known = {state.id for state in self._registry.view.clusters} | {entry.cluster for entry in self._config.agents}
        if cluster not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise RequestError(ErrorKind.BAD_REQUEST, f"cluster {cluster!r} is unknown; known are {listed}")
        entry = next((entry for entry in self._policies.current.clusters if entry.id == cluster), None)
        change = changes.cluster(
            cluster,
            entry,
            self._office.voice(),
            intent=None if action == "weight" else _INTENTS[action],
            weight=(await _weight(request)).weight if action == "weight" else None,
        )
        applied = await self._office.command(change, at_once=True)
        self._log.info("operator", action=action, cluster=cluster, by=caller.get())
        self._on_change()
        rows = self._registry.rows(self._clock.monotonic_s())
        unheard = {"cluster": cluster, "status": "unheard"}
        return json_response(next((row for row in rows if row["cluster"] == cluster), unheard) | {"applied": applied})

    async def config(self, _: web.Request) -> web.Response:
        """The policy in force, what the fleet lacks for it, and why a newer one is not. It holds no secret."""
        policies = self._policies
        return json_response(
            {
                "version": policies.current.version,
                "digest": policies.current.digest,
                "rejected": policies.rejected,
                "warnings": policies.warnings,
                "restart_needed": policies.restart_needed,
                "agents": [entry.cluster for entry in self._config.agents],
                "policy": policies.current,
            }
        )

    async def models(self, _: web.Request) -> web.Response:
        """Each model with the clusters that serve it."""
        view = self._registry.view
        models: dict[str, Any] = {
            name: [{"cluster": state.id, "status": state.status.value, "weight": state.weight} for state in states]
            for name, states in sorted(view.by_model.items())
        }
        return json_response({"models": models})


async def _weight(request: web.Request) -> _Weight:
    try:
        return msgspec.json.decode(await request.read(), type=_Weight)
    except msgspec.DecodeError as error:
        raise RequestError(ErrorKind.BAD_REQUEST, f'body: {error}; send {{"weight": 0.5}}') from None
