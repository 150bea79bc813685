"""A hedged request begins attempts and ends every one of them, in whatever turn of the loop its client leaves."""

import asyncio
import contextlib

import pytest

from gir.forward.answer import Answer, AttemptPlan
from gir.forward.hedge import first_good
from gir.forward.job import Try
from gir.model.decision import Candidate
from gir.model.ids import ClusterId, TierName
from gir.model.outcome import AttemptResult, Phase

TURNS_MAX = 12


def candidate(name: str) -> Candidate:
    return Candidate(cluster=ClusterId(name), url="http://127.0.0.1:1", tier=TierName("t"), score_s=0.0)


class FakeWalk:
    """Attempts that are answered after so many turns of the loop; None never. A cancelled one ends itself, as real."""

    def __init__(self, *turns: tuple[int | None, AttemptResult]) -> None:
        self._turns = list(turns)
        self.begun: list[Try] = []
        self.ended: list[Try] = []

    def _begin(self, name: str) -> Try:
        self.begun.append(Try(candidate(name), 0.0))
        return self.begun[-1]

    def begin_first(self, candidate: Candidate) -> Try:
        return self._begin(candidate.cluster)

    def begin_hedge(self) -> Try | None:
        return self._begin("b")

    async def open(self, attempt: Try, plan: AttemptPlan | None = None) -> Try:
        turns, result = self._turns[self.begun.index(attempt)]
        try:
            for _ in range(10_000 if turns is None else turns):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.ended.append(attempt)
            raise
        attempt.answer = Answer(result=result, phase=Phase.STREAMING)
        return attempt

    def drop(self, loser: Try) -> None:
        self.ended.append(loser)


OK, BAD = AttemptResult.OK, AttemptResult.LOCAL_FAULT


@pytest.mark.parametrize("leaves_after", range(TURNS_MAX))
@pytest.mark.parametrize(
    "turns",
    [((2, OK), (None, OK)), ((4, OK), (3, OK)), ((4, BAD), (3, OK)), ((3, BAD), (3, BAD)), ((None, OK), (2, OK))],
)
@pytest.mark.parametrize("after_s", [0.0, 60.0])
async def test_every_attempt_is_ended_once_whenever_the_client_leaves(
    turns: tuple[tuple[int | None, AttemptResult], ...], leaves_after: int, after_s: float
) -> None:
    walk = FakeWalk(*turns)
    request = asyncio.get_running_loop().create_task(first_good(walk, candidate("a"), after_s))
    for _ in range(leaves_after):
        await asyncio.sleep(0)
    request.cancel()
    winner: Try | None = None
    with contextlib.suppress(asyncio.CancelledError):
        winner = await request
    kept = [] if winner is None else [winner]
    assert sorted(map(id, walk.ended + kept)) == sorted(map(id, walk.begun))
