"""`/admin/canaries`: what rewrite rules do, and the operator's hand on them."""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from gir.clock import Clock
from gir.model.cluster import ClusterView
from gir.model.errors import ErrorKind, RequestError
from gir.model.policy import CanaryRule, PolicySnapshot
from gir.place import CanaryEvent, Rewriter
from gir.place.check import check_placement
from gir.place.lacking import lacking
from gir.telemetry.admin import caller, json_response

_KEPT = 200
ACTIONS = ("start", "promote", "abort")


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = ""


class CanaryApi:
    """Handlers over the rewriter in use, and the keeper of its audit trail."""

    __slots__ = ("_clock", "_on_event", "_policy", "_rewriter", "_trail", "_view")

    def __init__(
        self,
        rewriter: Rewriter,
        clock: Clock,
        *,
        view: Callable[[], ClusterView],
        policy: Callable[[], PolicySnapshot],
        on_event: Callable[[CanaryEvent], None] = lambda _: None,
    ) -> None:
        self._rewriter = rewriter
        self._clock = clock
        self._view = view
        self._policy = policy
        self._on_event = on_event
        self._trail: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def routes(self) -> list[web.RouteDef]:
        """Routes to add to the admin application."""
        return [
            web.get("/admin/canaries", self.status),
            web.post("/admin/canaries", self.launch),
            web.post("/admin/canaries/{rule}/{action}", self.act),
        ]

    def tick(self) -> None:
        """Let time act on plans and guards, and take events to the audit log. Call it about once a second."""
        now_s = self._clock.monotonic_s()
        if self._policy() is not self._rewriter.policy:
            self._rewriter.adopt(self._policy(), now_s)
        self._rewriter.tick(now_s)
        for event in self._rewriter.take_events():
            wall_s = self._clock.wall_s() - (now_s - event.at_s)
            self._trail.append(msgspec.to_builtins(event) | {"at_s": round(wall_s, 3)})
            self._on_event(event)

    async def status(self, _: web.Request) -> web.Response:
        """Every rule: state, shares, requests and errors by target; and the newest audit events."""
        self.tick()
        return json_response({"canaries": self._rewriter.rows(self._clock.monotonic_s()), "events": list(self._trail)})

    async def launch(self, request: web.Request) -> web.Response:
        """Add and start a rule that is not in the policy; it lives as long as this process."""
        try:
            rule = msgspec.json.decode(await request.read(), type=CanaryRule)
            policy = msgspec.structs.replace(self._policy(), rewrites=(rule,), tenants=())
            check_placement(policy)
            self._check_served(policy)
            self.tick()
            self._rewriter.launch(rule, self._clock.monotonic_s(), caller.get("local"))
        except (msgspec.DecodeError, ValueError) as error:
            raise RequestError(ErrorKind.BAD_REQUEST, f"canary: {error}") from None
        return self._row(rule.name)

    async def act(self, request: web.Request) -> web.Response:
        """Start again, promote or abort a rule."""
        name, action = request.match_info["rule"], request.match_info["action"]
        self.tick()
        try:
            trial = self._rewriter.trial(name)
        except KeyError as error:
            raise RequestError(ErrorKind.NOT_FOUND, str(error.args[0])) from None
        now_s, by = self._clock.monotonic_s(), caller.get("local")
        try:
            if action == "start":
                trial.start(now_s, by)
            elif action == "promote":
                trial.promote(now_s, by)
            elif action == "abort":
                trial.abort(now_s, by, await _reason(request))
            else:
                raise RequestError(ErrorKind.NOT_FOUND, f"no action '{action[:40]}'; use one of {', '.join(ACTIONS)}")
        except (msgspec.DecodeError, ValueError) as error:
            raise RequestError(ErrorKind.BAD_REQUEST, f"canary: {error}") from None
        return self._row(name)

    def _check_served(self, policy: PolicySnapshot) -> None:
        """Raise ValueError when a target of the policy's rule is served by nobody, as far as anybody was heard."""
        view = self._view()
        missing = next(lacking(policy, view), None) if view.by_model else None
        if missing is not None:
            raise ValueError(missing.text)

    def _row(self, name: str) -> web.Response:
        self.tick()
        return json_response(self._rewriter.trial(name).row(self._clock.monotonic_s()))


async def _reason(request: web.Request) -> str:
    """The operator's words, if any."""
    body = await request.read()
    return msgspec.json.decode(body, type=_Said).reason[:500] if body else ""
