"""One rewrite rule in operation: who goes where, how it fares, and what was done to it.

    RUNNING  --guard objects, or abort-->  ABORTED    everything to the stable target
    RUNNING  --promote---------------->    PROMOTED   everything to the canary
    ABORTED, PROMOTED  --start-------->    RUNNING    from the beginning of the plan

What routers must agree on comes as an order (`heed`): the run, its stage and its verdict. The evidence is each router's
own, so whichever router's guard objects first speaks for all. A run never goes back to RUNNING: to start again is
another run. So an order that does not know yet of a verdict spoken here cannot undo it.

A changed rule starts a new trial when its targets changed or the old one was over; otherwise it goes on with the new
weights. Reloading an unchanged rule never revives an aborted canary.
"""

import enum
from collections import deque
from typing import Any

import msgspec
import xxhash

from gir.model.orders import CanaryOrder, mark
from gir.model.policy import CanaryRule
from gir.place.guard import Arm, Left, Sample, verdict

_UNDERWAY_MAX = 500
"""Newest requests of each target that are watched on their way."""
_JUDGE_EVERY_S = 1.0
_JUDGE_EVERY = 5
"""Canary results after which the guard looks again, or a second, whichever comes first: judging is not free."""
_UNIT = 1.0 / (1 << 64)


class TrialState(enum.Enum):
    """Where a rule stands."""

    RUNNING = "running"
    PROMOTED = "promoted"
    ABORTED = "aborted"


class Rewrite(msgspec.Struct, kw_only=True, gc=False):
    """What a request is to be served by, and why. `settled` once its result has been observed."""

    model: str
    """Model to ask the cluster for."""
    rule: str = ""
    """Rule that matched; '' when none did."""
    target: str = ""
    """Target the draw fell to; differs from `model` in a dry run."""
    note: str = ""
    """`rule=... draw=... -> target`, for the decision's record."""
    arm: int = 0
    """Position of `target` in the rule; 0 is the control."""
    started_s: float = 0.0
    ttft_s: float | None = None
    """Time to its first token, from the moment that came; the end of the answer may be far off still."""
    settled: bool = False


class CanaryEvent(msgspec.Struct, frozen=True):
    """One line of the audit trail. `at_s` is monotonic."""

    at_s: float
    rule: str
    action: str
    """`start`, `stage`, `promote`, `abort`."""
    by: str
    """Who: an operator's name, `guard` or `plan`; of another router, `guard at` its name."""
    detail: str = ""
    run: int = 0


class Trial:
    """State of one rule. All methods take the time; nothing here looks at a clock."""

    __slots__ = ("_arms", "_events", "_judged_s", "_since_s", "_staged_s", "_underway", "mark", "reason", "rule", "run",
                 "stage", "started_s", "state", "tally", "weights")  # fmt: skip

    def __init__(self, rule: CanaryRule, now_s: float, events: list[CanaryEvent]) -> None:
        self._events = events
        self.rule = rule
        self.mark = mark(rule)
        """What orders about this very rule carry."""
        self.run = 0
        """Which start this is; orders count them."""
        self.state = TrialState.RUNNING
        self.reason = ""
        self.tally: dict[tuple[str, str], int] = {}
        """Results by (target, `ok` | `error` | `unjudged`) since the rule was first seen; only grows."""
        self.started_s = self._judged_s = self._since_s = self._staged_s = now_s
        self.stage = 0
        """Position in the plan."""
        self._reset(now_s)

    def draw(self, key: bytes) -> tuple[int, float, float]:
        """Target of a caller, with the draw and the threshold that decided, from a stable hash of `key`.

        From the last target to the second: target i takes w_i / (w_0 + ... + w_i) of those the later ones left, by a
        draw of its own. Raising w_i therefore moves callers onto i and nobody off it.
        """
        if self.state is TrialState.ABORTED or len(self.weights) == 1:
            return 0, 0.0, 0.0
        if self.state is TrialState.PROMOTED:
            return 1, 0.0, 1.0
        together = sum(self.weights)
        draw = threshold = 0.0
        for position in range(len(self.weights) - 1, 0, -1):
            seed = xxhash.xxh3_64_intdigest(f"{self.rule.name}\0{position}".encode())
            draw = xxhash.xxh3_64_intdigest(key, seed) * _UNIT
            threshold = self.weights[position] / together if together else 0.0
            if draw < threshold:
                return position, draw, threshold
            together -= self.weights[position]
        return 0, draw, threshold

    def dispatched(self, rewrite: Rewrite) -> None:
        """Watch a request on its way: one that never answers counts too, and a first token long before the end."""
        if self.rule.guard is not None and rewrite.arm < len(self._arms):
            self._underway[rewrite.arm].append(rewrite)

    def observe(self, rewrite: Rewrite, ok: bool | None, ttft_s: float | None, now_s: float) -> None:
        """Take a result in and judge. `ok` None: its end says nothing about the model, only its wait does."""
        if rewrite.settled:
            return
        rewrite.settled = True
        result = "unjudged" if ok is None else "ok" if ok else "error"
        self.tally[rewrite.target, result] = self.tally.get((rewrite.target, result), 0) + 1
        if rewrite.started_s < self._since_s or rewrite.arm >= len(self._arms):
            return  # it says something of an earlier run, perhaps of another target
        arm = self._arms[rewrite.arm]
        if ok is None:
            waited_s = now_s - rewrite.started_s if ttft_s is None else ttft_s
            arm.leave(Left(now_s, waited_s, ttft_s is not None))
            return
        arm.add(Sample(now_s, ok, ttft_s))
        if rewrite.arm and arm.requests % _JUDGE_EVERY == 0:
            self._judge(now_s)

    def advance(self, now_s: float) -> None:
        """Let time act: the next stage of the plan, and requests that hang."""
        if self.state is not TrialState.RUNNING:
            return
        if self.rule.guard is not None and now_s - self._judged_s >= _JUDGE_EVERY_S:
            self._judge(now_s)
        plan = self.rule.plan
        while self.stage + 1 < len(plan) and now_s - self.started_s >= plan[self.stage + 1][0] and self._content():
            self._enter(self.stage + 1, now_s, "plan")

    def start(self, now_s: float, by: str) -> None:
        """Begin (again) at the first stage with no results."""
        self.state, self.reason = TrialState.RUNNING, ""
        self._reset(now_s)
        self._say(now_s, "start", by, f"weights {', '.join(map(str, self.weights))}")

    def promote(self, now_s: float, by: str) -> None:
        """Send everything to the canary. Raises ValueError for a rule without one."""
        if len(self.rule.targets) < 2:
            raise ValueError(f"rule {self.rule.name} has one target: there is nothing to promote")
        self.state, self.reason = TrialState.PROMOTED, f"promoted by {by}"
        self._say(now_s, "promote", by, self.rule.targets[1].model)

    def abort(self, now_s: float, by: str, detail: str = "") -> None:
        """Send everything to the stable target."""
        self.state, self.reason = TrialState.ABORTED, detail or f"aborted by {by}"
        self._forget_underway()
        self._say(now_s, "abort", by, self.reason)

    def heed(self, order: CanaryOrder, began_s: float, now_s: float) -> None:
        """Do as all routers do: the run that began at `began_s`, its stage and its verdict."""
        if order.of != self.mark:
            return  # said of another version of the rule
        if order.run != self.run:
            self.run = order.run
            self.start(now_s, order.by)
        self.started_s = min(self.started_s, began_s)
        if order.stage > self.stage and order.stage < len(self.rule.plan):
            self._enter(order.stage, now_s, order.by)
        if order.state == "aborted" and self.state is not TrialState.ABORTED:
            self.abort(now_s, order.by, order.reason)
        elif order.state == "promoted" and self.state is not TrialState.PROMOTED and len(self.rule.targets) > 1:
            self.promote(now_s, order.by)

    def adopt(self, rule: CanaryRule, now_s: float) -> None:
        """Go on under a changed rule of the same name."""
        before, self.rule = self.rule, rule
        if rule != before:
            self.mark, self.run = mark(rule), 0
        if [each.model for each in before.targets] != [each.model for each in rule.targets]:
            self.start(now_s, "policy")
        elif rule != before:
            if self.state is not TrialState.RUNNING:
                self.start(now_s, "policy")
            self.stage = min(self.stage, max(0, len(rule.plan) - 1))
            self._weigh()

    def shares(self) -> dict[str, float]:
        """Share of callers on each target now."""
        names = [target.model for target in self.rule.targets]
        if self.state is not TrialState.RUNNING:
            only = int(self.state is TrialState.PROMOTED)
            return {name: float(place == only) for place, name in enumerate(names)}
        together = sum(self.weights)
        return {name: weight / together if together else 0.0 for name, weight in zip(names, self.weights, strict=True)}

    def row(self, now_s: float) -> dict[str, Any]:
        """Status for the admin API: JSON-able."""
        shares = self.shares()
        return {
            "rule": self.rule.name,
            "state": self.state.value,
            "reason": self.reason,
            "run": self.run,
            "dry_run": self.rule.dry_run,
            "running_s": round(max(0.0, now_s - self.started_s), 3),
            "stage": self.stage + 1 if self.rule.plan else None,
            "stages": len(self.rule.plan),
            "targets": [
                {
                    "model": target.model,
                    "role": "canary" if place else "control",
                    "share": shares[target.model],
                    "requests": arm.requests,
                    "errors": arm.errors,
                }
                for place, (target, arm) in enumerate(zip(self.rule.targets, self._arms, strict=True))
            ],
        }

    def __repr__(self) -> str:
        return f"<Trial {self.rule.name}: {self.state.value}, weights {self.weights}>"

    def _reset(self, now_s: float) -> None:
        self.started_s = self._judged_s = self._since_s = self._staged_s = now_s
        self.stage = 0
        self._arms = [Arm() for _ in self.rule.targets]
        self._forget_underway()
        self._weigh()

    def _forget_underway(self) -> None:
        self._underway: list[deque[Rewrite]] = [deque(maxlen=_UNDERWAY_MAX) for _ in self.rule.targets]

    def _weigh(self) -> None:
        """Weights in force: the policy's, or those of the plan's stage."""
        targets, plan = self.rule.targets, self.rule.plan
        weighted = targets[0].weight is not None
        self.weights = [target.weight or 0 if weighted else 1 for target in targets]
        if plan and len(targets) > 1:
            together = sum(self.weights) if weighted else 100
            canary = min(plan[self.stage][1], together)
            self.weights = [together - canary, canary, *([0] * (len(targets) - 2))]

    def _enter(self, stage: int, now_s: float, by: str) -> None:
        self.stage, self._staged_s = stage, now_s
        self._weigh()
        self._say(now_s, "stage", by, f"weight {self.rule.plan[stage][1]}")

    def _content(self) -> bool:
        """Whether the guard has seen enough at this stage to let the next one begin."""
        guard = self.rule.guard
        if guard is None:
            return True
        seen = sum(sample.at_s >= self._staged_s for sample in self._arms[1].samples)
        return self.weights[1] == 0 or seen >= guard.samples_min

    def _judge(self, now_s: float) -> None:
        guard = self.rule.guard
        if guard is None or self.state is not TrialState.RUNNING:
            return
        self._judged_s = now_s
        for arm, underway in zip(self._arms, self._underway, strict=True):
            while underway and underway[0].settled:
                underway.popleft()
            arm.begun_s = [each.ttft_s for each in underway if not each.settled and each.ttft_s is not None]
        for place in range(1, len(self._arms)):
            silent = (each for each in self._underway[place] if not each.settled and each.ttft_s is None)
            overdue_s = tuple(now_s - each.started_s for each in silent)
            bad = verdict(self._arms[place], self._arms[0], guard, now_s, overdue_s)
            if bad:
                self.abort(now_s, "guard", bad)
                return

    def _say(self, now_s: float, action: str, by: str, detail: str) -> None:
        self._events.append(CanaryEvent(now_s, self.rule.name, action, by, detail, self.run))
