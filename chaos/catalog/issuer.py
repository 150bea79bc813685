"""A token issuer that is away, slow, broken, changes its keys, or is used as a lever against us."""

import asyncio
import secrets

from chaos.drill import Drill
from chaos.figures import figure_at_least, figure_at_most
from chaos.promises import RUDE, control_unmoved, no_error_at_all
from chaos.rude import Caller, chat
from chaos.stage import EXPERIMENT_MODEL, Stage

KEPT, NEW, OLD, NEVER = "kept", "new", "old", "never"
"""Keys: always published; published later; withdrawn later; never published."""
REFRESH_S, COOLDOWN_S = 240.0, 30.0
"""The router's defaults, written out so that they can be scaled."""
KEY_WAIT_S = 0.3
PHASE_S = 10.0
FLOOD_RPS = 50.0
ASKED_AT_LEAST = 20

WRONGFUL = "genuine tokens refused while the issuer was away, slow or broken"
TRIED = "fresh genuine tokens tried meanwhile"
WAITED = "longest wait for keys"
NEW_KEY = "new key usable after"
NEW_FETCHES = "fetches until the new key was usable"
FLOODED = "tokens with made-up keys let in"
FLOOD_SENT = "tokens with made-up keys sent"
FLOOD_FETCHES = "fetches for a flood of made-up keys, beyond one each cooldown"
WITHDRAWN = "withdrawn key refused after"


class _Visitor:
    """Asks with tokens of its own making and notes what the router says."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def ask(self, kid: str, *, claimed: str | None = None) -> int:
        """Status for a fresh token signed by `kid`; what it waited is noted."""
        stage = self._stage
        token = stage.issuer.token(claimed or kid, tenant="experiment", signed_by=kid)
        caller = Caller(stage.fleet.router_url, token, stage.clock)
        body = chat(EXPERIMENT_MODEL, max_tokens=1)
        status, _, took_s = await caller.post(caller.head(len(body)), iter([body]))
        if status in (401, 503):
            stage.measured(WAITED, took_s)
        return status


async def _misbehave(stage: Stage) -> None:
    """Away, slow and broken in turn; each time known keys must work, and unknown ones must hold nobody."""
    visitor, issuer = _Visitor(stage), stage.issuer
    issuer.published = (KEPT, OLD)
    await _until(stage, visitor, OLD, 200)
    stage.measured(WRONGFUL, 0)
    for mode in ("away", "slow", "error"):
        if mode == "away":
            issuer.stop()
        else:
            issuer.mode = mode
            issuer.start()
        end_s = stage.clock.monotonic_s() + PHASE_S * stage.facts.scale
        while stage.clock.monotonic_s() < end_s or stage.facts.figures.get(TRIED, 0) < ASKED_AT_LEAST:
            status, _ = await asyncio.gather(visitor.ask(KEPT), visitor.ask(NEVER))
            stage.measured(TRIED, stage.facts.figures.get(TRIED, 0) + 1)
            stage.measured(WRONGFUL, stage.facts.figures[WRONGFUL] + (status != 200))
            await stage.clock.sleep_s(0.1)
    issuer.mode = "ok"


async def _rotate_and_flood(stage: Stage) -> None:
    """A new key is published, then the door is stormed with keys nobody ever published, then a key is withdrawn."""
    visitor, issuer = _Visitor(stage), stage.issuer
    issuer.published = (KEPT, OLD, NEW)
    before, since_s = len(issuer.fetches), stage.clock.monotonic_s()
    await _until(stage, visitor, NEW, 200)
    stage.measured(NEW_KEY, stage.clock.monotonic_s() - since_s)
    stage.measured(NEW_FETCHES, len(issuer.fetches) - before)
    await _flood(stage, visitor)
    issuer.published = (KEPT, NEW)
    since_s = stage.clock.monotonic_s()
    await _until(stage, visitor, OLD, 401)
    stage.measured(WITHDRAWN, stage.clock.monotonic_s() - since_s)


async def _flood(stage: Stage, visitor: _Visitor) -> None:
    lasts_s = max(2.0, 2.0 * COOLDOWN_S * stage.facts.scale)
    before, end_s = len(stage.issuer.fetches), stage.clock.monotonic_s() + lasts_s
    let_in = sent = 0
    while stage.clock.monotonic_s() < end_s:
        batch = [visitor.ask(NEVER, claimed=secrets.token_hex(8)) for _ in range(int(FLOOD_RPS / 10))]
        statuses = await asyncio.gather(*batch)
        sent += len(statuses)
        let_in += sum(status not in (401, 503) for status in statuses)
        await stage.clock.sleep_s(0.1)
    allowed = lasts_s / (COOLDOWN_S * stage.facts.scale) + 1
    stage.measured(FLOOD_SENT, sent)
    stage.measured(FLOODED, let_in)
    stage.measured(FLOOD_FETCHES, max(0.0, len(stage.issuer.fetches) - before - allowed))


async def _until(stage: Stage, visitor: _Visitor, kid: str, wanted: int) -> None:
    """Ask with fresh tokens until the answer is as wanted, or it is certain that it never will be."""
    give_up_s = stage.clock.monotonic_s() + 2.0 * REFRESH_S * stage.facts.scale + 5.0
    while await visitor.ask(kid) != wanted and stage.clock.monotonic_s() < give_up_s:
        await stage.clock.sleep_s(0.1)


DRILLS = (
    Drill(
        id="F26",
        title="the issuer of tokens misbehaves",
        hypothesis="Its key set is away, slow, answers 500; then a key is added, made-up keys are claimed fifty times "
        "a second, and a key is withdrawn: no genuine token is refused, no request waits 300 ms for keys, a new key "
        "works with one fetch, a flood causes one fetch in 30 s, a withdrawn key is refused within 5 min.",
        fault=_misbehave,
        heal=_rotate_and_flood,
        victims=(),
        issuer=(KEPT, NEW, OLD, NEVER),
        issuer_settings=lambda scale: {"refresh_s": REFRESH_S * scale, "cooldown_s": COOLDOWN_S * scale},
        rude=True,
        during_s=1.0,
        promises=(
            *RUDE,
            control_unmoved,
            no_error_at_all,
            figure_at_least(TRIED, ASKED_AT_LEAST),
            figure_at_most(WRONGFUL, 0, unit=""),
            figure_at_most(WAITED, KEY_WAIT_S),
            figure_at_most(NEW_KEY, COOLDOWN_S, scaled=True),
            figure_at_most(NEW_FETCHES, 1, unit=""),
            figure_at_least(FLOOD_SENT, ASKED_AT_LEAST),
            figure_at_most(FLOODED, 0, unit=""),
            figure_at_most(FLOOD_FETCHES, 0, unit=""),
            figure_at_most(WITHDRAWN, 300.0, scaled=True),
        ),
    ),
)
