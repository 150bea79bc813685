"""Which model a request is served by: aliases, and rules that split a model's callers between targets.

The shape is the Inference Extension's InferenceModelRewrite: rules match model and headers and name weighted targets.
What it leaves open is settled here: a caller stays where a stable hash of tenant and session (or key) puts it, raising
a weight moves nobody off the canary, a target gets traffic only while some live cluster reports it, and a guarded rule
aborts by itself. A rule's target is not matched again, so rules cannot loop; aliases of targets are resolved.
"""

from collections.abc import Mapping, Sequence

from gir.model.cluster import ClusterView
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId
from gir.model.orders import CanaryOrder
from gir.model.policy import CanaryRule, PolicySnapshot, RuleMatch
from gir.model.request import Criticality, Principal
from gir.place.roster import Kind, PolicyIndex, lasting
from gir.place.trial import CanaryEvent, Rewrite, Trial, TrialState
from gir.wire.headers import CANARY

_EVENTS_MAX = 1_000
_NOBODY = PolicySnapshot()


class Rewriter:
    """Applies aliases and rules, and runs the trials behind them."""

    __slots__ = ("_aliases", "_any_model", "_by_model", "_events", "_index", "_live", "_orders", "_policy", "_view",
                 "trials")  # fmt: skip

    def __init__(self) -> None:
        self._policy = _NOBODY
        self._aliases: dict[str, str] = {}
        self._by_model: dict[str, list[CanaryRule]] = {}
        self._any_model: list[CanaryRule] = []
        self._orders: dict[str, tuple[CanaryOrder, float]] = {}
        """What is said of each rule on every router, and when its run began."""
        self._view = ClusterView()
        self._index = PolicyIndex(_NOBODY)
        self._live: dict[Kind, bool] = {}
        self._events: list[CanaryEvent] = []
        self.trials: dict[str, Trial] = {}

    def rewrite(
        self,
        model: str,
        headers: Sequence[tuple[bytes, bytes]],
        principal: Principal,
        session_key: str | None,
        policy: PolicySnapshot,
        view: ClusterView,
        now_s: float,
        *,
        criticality: Criticality | None = None,
        explain: bool = False,
    ) -> Rewrite:
        """The model `principal` is served by when it asks for `model`. With `explain` the answer counts for nothing.

        `criticality` is the request's class, the principal's usual one if not told. A policy newer than the one in
        force is adopted. An older one is not: a request that was long in coming must not bring back old rules.

        Raises RequestError (BAD_REQUEST) when a tester's override names no target of the rule.
        """
        if policy is not self._policy and policy.version >= self._policy.version:
            self.adopt(policy, now_s)
        rule = self._match(model, headers) if self._by_model or self._any_model else None
        plain = self._aliases.get(model, model)
        if rule is None and plain != model and self._by_model:
            rule = self._match(plain, headers)
        if rule is None:
            return Rewrite(model=plain, started_s=now_s)
        if view is not self._view:
            self._view = view
            self._live.clear()
        usual = principal.criticality_default if criticality is None else criticality
        rewrite = self._split(rule, headers, principal, session_key, usual, now_s)
        if explain:
            rewrite.settled = True
        elif not rule.dry_run:
            self.trials[rule.name].dispatched(rewrite)
        return rewrite

    def observe(self, rewrite: Rewrite, ok: bool | None, ttft_s: float | None, now_s: float) -> None:
        """Tell how a rewritten request ended; every `Rewrite` must come back once.

        `ok` is None when the end says nothing about the model (client left, refused before dispatch, caller's error).
        """
        trial = self.trials.get(rewrite.rule) if rewrite.rule else None
        if trial is not None:
            trial.observe(rewrite, ok, ttft_s, now_s)

    def tick(self, now_s: float) -> None:
        """Let time act on every trial; call it about once a second."""
        for trial in self.trials.values():
            trial.advance(now_s)

    def adopt(self, policy: PolicySnapshot, now_s: float) -> None:
        """Take a policy's aliases and rules; trials of unchanged rules go on.

        Rules that orders bring stand ahead of the policy's, which takes over those it has by the same name.
        """
        self._policy = policy
        self._index = PolicyIndex(policy)
        self._live.clear()
        self._aliases = {alias: str(each.name) for each in policy.models for alias in each.aliases}
        self._by_model, self._any_model = {}, []
        rules = [*self._launched(), *policy.rewrites]
        for rule in rules:
            for name in {match.model for match in rule.matches if match.model is not None}:
                self._by_model.setdefault(name, []).append(rule)
            if any(match.model is None for match in rule.matches):
                self._any_model.append(rule)
            trial = self.trials.get(rule.name)
            if trial is None:
                self.trials[rule.name] = Trial(rule, now_s, self._events)
            else:
                trial.adopt(rule, now_s)
        names = {rule.name for rule in rules}
        for gone in [name for name in self.trials if name not in names]:
            del self.trials[gone]
        for name, (order, began_s) in self._orders.items():
            if name in self.trials:
                self.trials[name].heed(order, began_s, now_s)

    def heed(self, orders: Mapping[str, CanaryOrder], now_s: float, now_unix_s: float) -> None:
        """Do as all routers do: rules beside the policy's, and where every canary stands."""
        self._orders = {name: (order, now_s - (now_unix_s - order.began_unix_s)) for name, order in orders.items()}
        self.adopt(self._policy, now_s)

    def is_listed(self, name: str) -> bool:
        """Whether the policy has a rule of that name."""
        return any(name == rule.name for rule in self._policy.rewrites)

    @property
    def policy(self) -> PolicySnapshot:
        """The policy whose rules are in force."""
        return self._policy

    def trial(self, rule: str) -> Trial:
        """The trial of a rule by name; raises KeyError naming those there are."""
        try:
            return self.trials[rule]
        except KeyError:
            listed = ", ".join(sorted(self.trials)) or "none"
            raise KeyError(f"no rewrite rule is called {rule!r}; there are: {listed}") from None

    def is_served(self, model: str, view: ClusterView) -> bool:
        """Whether some cluster of `view` may take work for a target now, for one caller or another."""
        name = ModelId(self._aliases.get(model, model))
        return self._serves(Kind(name, Criticality.CRITICAL, None, None), view)

    def take_events(self) -> list[CanaryEvent]:
        """Audit events since the last call, oldest first."""
        events = self._events[-_EVENTS_MAX:]
        self._events.clear()
        return events

    def __repr__(self) -> str:
        return f"<Rewriter {len(self._aliases)} aliases, {list(self.trials.values())}>"

    def _launched(self) -> list[CanaryRule]:
        """Rules that only orders bring."""
        said = (order.rule for order, _ in self._orders.values() if order.rule is not None)
        return [rule for rule in said if not self.is_listed(rule.name)]

    def _match(self, model: str, headers: Sequence[tuple[bytes, bytes]]) -> CanaryRule | None:
        """First rule that matches, those that name the model before those that match any."""
        for rule in self._by_model.get(model, ()):
            if any(match.model == model and _headers_match(match, headers) for match in rule.matches):
                return rule
        for rule in self._any_model:
            if any(match.model is None and _headers_match(match, headers) for match in rule.matches):
                return rule
        return None

    def _split(
        self,
        rule: CanaryRule,
        headers: Sequence[tuple[bytes, bytes]],
        principal: Principal,
        session_key: str | None,
        criticality: Criticality,
        now_s: float,
    ) -> Rewrite:
        trial = self.trials[rule.name]
        trial.advance(now_s)
        arm, how = self._override(rule, headers, principal)
        if arm is None:
            key = f"{principal.tenant}\0{session_key or principal.key_id}".encode()
            arm, draw, threshold = trial.draw(key)
            how = trial.state.value
            if trial.state is TrialState.RUNNING:
                how = f"draw={draw:.4f}{'<' if arm else '>='}{threshold:.4f}"
            if arm and not self._is_live(rule.targets[arm].model, principal, criticality):
                how += f" ({rule.targets[arm].model} has no live cluster for this caller)"
                arm = 0
        target = rule.targets[arm].model
        chosen = rule.targets[0].model if rule.dry_run else target
        return Rewrite(
            model=self._aliases.get(chosen, chosen),
            rule=rule.name,
            target=target,
            note=f"rule={rule.name} {how} -> {target}{' (dry run)' if rule.dry_run else ''}",
            arm=arm,
            started_s=now_s,
        )

    def _override(
        self, rule: CanaryRule, headers: Sequence[tuple[bytes, bytes]], principal: Principal
    ) -> tuple[int | None, str]:
        """Position of the target a tester insists on; None without a header, or from a caller who may not."""
        asked = next((value.decode("latin-1") for name, value in headers if name == CANARY), None)
        if asked is None or not (principal.trusted or principal.tenant in rule.testers):
            return None, ""
        for position, target in enumerate(rule.targets):
            if asked == target.model:
                return position, "override"
        listed = ", ".join(target.model for target in rule.targets)
        raise RequestError(
            ErrorKind.BAD_REQUEST,
            f"{CANARY.decode()}: '{asked[:80]}' is no target of rule {rule.name}; use one of {listed}",
            param=CANARY.decode(),
        )

    def _is_live(self, model: str, principal: Principal, criticality: Criticality) -> bool:
        """Whether some cluster that may take such work of `principal` reports the model (or its alias) and has slots.

        A caller kept to Regions where the canary is not, reserved out of its clusters, or of a class that their tiers
        are closed to, stays with the stable target.
        """
        kind = self._index.kind(ModelId(self._aliases.get(model, model)), criticality, principal)
        live = self._live.get(kind)
        if live is None:
            live = self._live[kind] = self._serves(kind, self._view)
        return live

    def _serves(self, kind: Kind, view: ClusterView) -> bool:
        base = view.base_of.get(kind.model, kind.model)
        return any(
            base in state.pools and lasting(state, state.pools[base], kind, self._index, view.fail_open)
            for state in view.by_model.get(kind.model, ())
        )


def _headers_match(match: RuleMatch, headers: Sequence[tuple[bytes, bytes]]) -> bool:
    """Whether every header condition holds."""
    return all(
        any(name == wanted.name.lower().encode() and value == wanted.value.encode() for name, value in headers)
        for wanted in match.headers
    )


__all__ = ["CanaryEvent", "Rewrite", "Rewriter", "Trial", "TrialState"]
