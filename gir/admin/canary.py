"""`/admin/canaries`: what rewrite rules do, and the operator's hand on them, on every router."""

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from gir.admin.orders import Office
from gir.clock import Clock
from gir.control import changes
from gir.control.changes import Seen, Voice
from gir.control.orders import OrderDesk
from gir.model.cluster import ClusterView
from gir.model.errors import ErrorKind, RequestError
from gir.model.policy import CanaryRule, PolicySnapshot
from gir.place import CanaryEvent, Rewriter
from gir.place.check import check_placement
from gir.place.lacking import lacking
from gir.place.trial import Trial, TrialState
from gir.telemetry.admin import json_response

_KEPT = 200
ACTIONS = ("start", "promote", "abort")


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    reason: str = ""


class CanaryApi:
    """Handlers over the rewriter in use, and the keeper of its audit trail. All routers hear what its guards decide."""

    def __init__(
        self,
        rewriter: Rewriter,
        desk: OrderDesk,
        office: Office,
        clock: Clock,
        *,
        router: str,
        view: Callable[[], ClusterView],
        policy: Callable[[], PolicySnapshot],
        on_event: Callable[[CanaryEvent], None] = lambda _: None,
    ) -> None:
        self._rewriter = rewriter
        self._desk = desk
        self._office = office
        self._clock = clock
        self._router = router
        self._view = view
        self._policy = policy
        self._on_event = on_event
        self._trail: deque[dict[str, Any]] = deque(maxlen=_KEPT)

    def routes(self) -> list[web.RouteDef]:
        """Routes to add to the admin application."""
        return [
            web.get("/admin/canaries", self.status),
            web.post("/admin/canaries", self.launch),
            web.delete("/admin/canaries/{rule}", self.remove),
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
            if event.by in ("guard", "plan"):
                self._tell(event, Voice(f"{event.by} at {self._router}", wall_s))

    async def status(self, _: web.Request) -> web.Response:
        """Every rule: state, shares, and this router's requests and errors by target; and the newest audit events."""
        self.tick()
        return json_response(
            {
                "canaries": [self._shown(trial) for trial in self._rewriter.trials.values()],
                "events": list(self._trail),
                "orders": self._office.where(),
            }
        )

    async def launch(self, request: web.Request) -> web.Response:
        """Add and start a rule that is not in the policy; it stays until it is removed."""
        self.tick()
        try:
            rule = msgspec.json.decode(await request.read(), type=CanaryRule)
            policy = msgspec.structs.replace(self._policy(), rewrites=(rule,), tenants=())
            check_placement(policy)
            self._check_served(policy)
            if self._rewriter.is_listed(rule.name):
                raise ValueError(f"the policy has a rule called {rule.name}; change it there, or choose another name")
        except (msgspec.DecodeError, ValueError) as error:
            raise RequestError(ErrorKind.BAD_REQUEST, f"canary: {error}") from None
        return self._row(rule.name, await self._office.command(changes.launch(rule, self._office.voice())))

    async def act(self, request: web.Request) -> web.Response:
        """Start again, promote or abort a rule."""
        name, action = request.match_info["rule"], request.match_info["action"]
        self.tick()
        try:
            seen = self._seen(self._rewriter.trial(name))
        except KeyError as error:
            raise RequestError(ErrorKind.NOT_FOUND, str(error.args[0])) from None
        voice = self._office.voice()
        if action == "start":
            change = changes.start(seen, voice)
        elif action == "promote":
            change = changes.promote(seen, voice)
        elif action == "abort":
            change = changes.abort(seen, voice, await _reason(request))
        else:
            raise RequestError(ErrorKind.NOT_FOUND, f"no action '{action[:40]}'; use one of {', '.join(ACTIONS)}")
        return self._row(name, await self._office.command(change, at_once=action == "abort"))

    async def remove(self, request: web.Request) -> web.Response:
        """Take away a rule that was started here or on another router, whatever its state."""
        name = request.match_info["rule"]
        change = changes.remove(name, listed=self._rewriter.is_listed(name))
        applied = await self._office.command(change)
        self.tick()
        return json_response({"rule": name, "state": "removed", "applied": applied})

    def _check_served(self, policy: PolicySnapshot) -> None:
        """Raise ValueError when a target of the policy's rule is served by nobody, as far as anybody was heard."""
        view = self._view()
        missing = next(lacking(policy, view), None) if view.by_model else None
        if missing is not None:
            raise ValueError(missing.text)

    def _tell(self, event: CanaryEvent, voice: Voice) -> None:
        """Have every router do what happened here by itself, unless it is over already."""
        trial = self._rewriter.trials.get(event.rule)
        if trial is None or trial.run != event.run:
            return
        if event.action == "stage":
            self._desk.insist(changes.advance(self._seen(trial), voice, trial.stage))
        elif trial.state is TrialState.ABORTED:
            self._desk.insist(changes.condemn(self._seen(trial), voice, event.detail))

    def _seen(self, trial: Trial) -> Seen:
        name, age_s = trial.rule.name, self._clock.monotonic_s() - trial.started_s
        return Seen(
            rule=trial.rule,
            launched=not self._rewriter.is_listed(name),
            run=trial.run,
            state=trial.state.value,
            began_unix_s=max(0.0, self._clock.wall_s() - age_s),
        )

    def _shown(self, trial: Trial) -> dict[str, Any]:
        """A trial's status, and whether each target can be had now: who cannot gets nothing, whatever its share."""
        row, view = trial.row(self._clock.monotonic_s()), self._view()
        for target in row["targets"]:
            target["live"] = self._rewriter.is_served(target["model"], view)
        return row

    def _row(self, name: str, applied: dict[str, Any]) -> web.Response:
        self.tick()
        try:
            row = self._shown(self._rewriter.trial(name))
        except KeyError as error:  # removed by somebody else since
            raise RequestError(ErrorKind.NOT_FOUND, str(error.args[0])) from None
        return json_response(row | {"applied": applied})


async def _reason(request: web.Request) -> str:
    """The operator's words, if any. Raises RequestError."""
    body = await request.read()
    try:
        return msgspec.json.decode(body, type=_Said).reason[:500] if body else ""
    except msgspec.DecodeError as error:
        raise RequestError(ErrorKind.BAD_REQUEST, f"canary: {error}") from None
