"""Streams that end in the middle.

Every experiment pod is at fault: were it one cluster, placement would soon send its traffic elsewhere and leave next to
nothing to judge.
"""

from chaos.drill import Drill
from chaos.engine.faults import Fault
from chaos.hits import fault_hit
from chaos.promises import (
    ALWAYS,
    broken_streams_say_so,
    failover_is_counted,
    no_error_before_token,
    tokens_settled_exactly,
)
from chaos.stage import Stage

CUT_SHARE = 0.2
CHUNKS_MAX = 20
NONSENSE = {"utf8": 31, "html": 32, "long_line": 43, "empty": 49}
"""Kinds and their seeds; each seed hits the first request it is asked about, so that short runs meet every kind."""


async def _reset(stage: Stage) -> None:
    await stage.order(_cut("rst"), stage.experiment_pods)


async def _end_early(stage: Stage) -> None:
    await stage.order(_cut("fin"), stage.experiment_pods)


async def _nonsense(stage: Stage) -> None:
    for how, seed in NONSENSE.items():
        fault = Fault(
            kind="malformed", how=how, name=how, probability=0.1, seed=seed, after_chunks=CHUNKS_MAX,
            random_chunks=True,
        )  # fmt: skip
        await stage.order(fault, stage.experiment_pods)


async def _relieve(stage: Stage) -> None:
    await stage.relieve(stage.experiment_pods)


def _cut(how: str) -> Fault:
    return Fault(
        kind="cut", how=how, name="cut", probability=CUT_SHARE, seed=9, after_chunks=CHUNKS_MAX, random_chunks=True
    )


PROMISES = (
    *ALWAYS,
    no_error_before_token,
    broken_streams_say_so(1.0, at_least=2),
    tokens_settled_exactly,
    failover_is_counted,
    fault_hit("cut", at_least=2),
)

DRILLS = (
    Drill(
        id="F09",
        title="streams are reset after a random number of chunks",
        hypothesis="Every stream that an engine resets past its first token ends with the error event and never with "
        "[DONE]; before it another cluster answers; the tokens settled are the tokens delivered.",
        fault=_reset,
        heal=_relieve,
        stream_share=1.0,
        promises=PROMISES,
    ),
    Drill(
        id="F11",
        title="engines talk nonsense",
        hypothesis="Broken UTF-8, HTML, a line of two mebibytes and empty events in the middle of streams: bytes pass "
        "unchanged or the stream ends with the error event; nobody else notices, and nothing falls over.",
        fault=_nonsense,
        heal=_relieve,
        stream_share=1.0,
        during_s=60.0,
        promises=(*ALWAYS, broken_streams_say_so(1.0, scaled=False), fault_hit(*NONSENSE)),
    ),
    Drill(
        id="F10",
        title="streams end early with a clean FIN",
        hypothesis="An end of connection proves nothing: a stream without [DONE] is treated as broken, as in F09.",
        fault=_end_early,
        heal=_relieve,
        stream_share=1.0,
        promises=PROMISES,
    ),
)
