"""Arrivals: the recorded conversation trace, and synthetic ones along a recorded day."""

import csv
import gzip
import json
import random
from importlib import resources
from typing import Any

import msgspec

TRACE_BLOCK_TOKENS = 512
"""Tokens behind one id of the recorded trace; also the block size of the simulated caches."""
_HASHES_PER_BLOCK = 4
"""Production hashes prompts every 512 bytes, about 128 tokens: one recorded block is four of those."""


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One request as the outside world makes it."""

    id: int
    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """Ids of the prompt's whole blocks; equal leading ids are equal prefixes."""
    hashes: tuple[int, ...] = ()
    """The same as a router sees it: finer hashes."""
    origin: int = 0
    """Position of the router it comes to."""
    home: int = 0
    """Position of its conversation's home Region, for policies that keep to it."""


def conversation(*, limit: int | None = None, speed: float = 1.0, homes: int = 1) -> list[Arrival]:
    """The Mooncake conversation trace (see `chaos/traces/README.md`), its first `limit` requests.

    `speed` above 1 plays it faster. A conversation's home Region, one of `homes`, is drawn from its first own block.
    """
    data = resources.files("chaos.traces").joinpath("mooncake_conversation_trace.jsonl.gz").read_bytes()
    arrivals = []
    for number, line in enumerate(gzip.decompress(data).splitlines()):
        if limit is not None and number >= limit:
            break
        row: dict[str, Any] = json.loads(line)
        tokens = int(row["input_length"])
        blocks = tuple(int(block) + 1 for block in row["hash_ids"][: tokens // TRACE_BLOCK_TOKENS])
        opening = row["hash_ids"][min(1, len(row["hash_ids"]) - 1)]
        arrivals.append(
            Arrival(
                id=number,
                at_s=float(row["timestamp"]) / 1e3 / speed,
                prompt_tokens=tokens,
                output_tokens=max(1, int(row["output_length"])),
                blocks=blocks,
                hashes=tuple(block * _HASHES_PER_BLOCK + part for block in blocks for part in range(_HASHES_PER_BLOCK)),
                home=random.Random(opening).randrange(homes),
            )
        )
    return arrivals


def reuse_ceiling(arrivals: list[Arrival]) -> float:
    """Share of prompt tokens one cache of unlimited size would have had ready, requests served in order."""
    known: set[int] = set()
    cached = 0
    for arrival in arrivals:
        leading = 0
        for block in arrival.blocks:
            if block not in known:
                break
            leading += 1
        cached += min(leading * TRACE_BLOCK_TOKENS, arrival.prompt_tokens - 1)
        known.update(arrival.blocks)
    return cached / sum(arrival.prompt_tokens for arrival in arrivals)


def day_rates() -> list[float]:
    """Requests each second over a recorded day in steps of 600 s, scaled to a mean of 1."""
    text = resources.files("chaos.traces").joinpath("servegen_msmall_day.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    rates = [float(row["requests_per_s"]) for row in rows]
    mean = sum(rates) / len(rates)
    return [rate / mean for rate in rates]


def diurnal(
    *, mean_per_s: tuple[float, ...], shift_h: tuple[float, ...], day_s: float, until_s: float, seed: int
) -> list[Arrival]:
    """Arrivals at several routers, each along the recorded day shifted by its time zone, with a day of `day_s`.

    Prompts and answers are drawn log-normally (medians 1,000 and 200 tokens, as in public chat traces); nothing is
    shared between prompts.
    """
    chance = random.Random(seed)
    rates = day_rates()
    arrivals = []
    for origin, (mean, shift) in enumerate(zip(mean_per_s, shift_h, strict=True)):
        peak = max(rates) * mean
        at_s = 0.0
        while True:
            at_s += chance.expovariate(peak)
            if at_s >= until_s:
                break
            step = int(((at_s / day_s + shift / 24.0) % 1.0) * len(rates))
            if chance.random() * peak > rates[step] * mean:
                continue  # thinning: what is left is a Poisson process of the varying rate
            arrivals.append((at_s, origin, chance.lognormvariate(6.9, 0.8), chance.lognormvariate(5.3, 0.6)))
    arrivals.sort()
    return [
        Arrival(
            id=number,
            at_s=at_s,
            prompt_tokens=min(16_000, max(16, int(prompt))),
            output_tokens=min(1_000, max(8, int(output))),
            origin=origin,
            home=origin,
        )
        for number, (at_s, origin, prompt, output) in enumerate(arrivals)
    ]
