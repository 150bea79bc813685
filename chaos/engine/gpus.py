"""How fast GPUs prefill and decode: straight lines fitted to published measurements.

The measurements (`gpu_measurements.csv`, with source and licence) give prefill time against tokens in the batch and
time per output token against sequences in the batch. Both are close to a line with a floor, and a line is what a
simulator needs: cheap to evaluate and easy to scale. Fits are relative least squares, so small batches count as much
as large ones. Prefill is within 40 % of every measurement up to 8,192 tokens, decode within 8 %
(`tests/unit/test_engine_gpus.py` holds the bounds).
"""

import csv
import functools
from collections.abc import Iterable
from importlib import resources

import msgspec

FIT_TOKENS_MAX = 8_192
"""Largest batch, in tokens, that the prefill line is fitted to; beyond it the source's engine was out of its range."""

Point = tuple[float, float]


class GpuProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Time of one engine step, in seconds.

    A step that prefills `p` tokens beside `d` decoding sequences takes
    `max(prefill_floor_s, prefill_fixed_s + (p + d) x prefill_token_s, decode_fixed_s + d x decode_sequence_s)`.
    """

    name: str
    prefill_floor_s: float
    """A prefill never takes less: reading the weights once."""
    prefill_fixed_s: float
    prefill_token_s: float
    decode_fixed_s: float
    decode_sequence_s: float
    """What each further sequence in the batch adds to a decode step."""

    @property
    def prefill_tokens_per_s(self) -> float:
        """Prefill rate of a long prompt."""
        return 1.0 / self.prefill_token_s

    def step_s(self, prefill_tokens: int, decoding: int) -> float:
        """Seconds that one step over `prefill_tokens` and `decoding` sequences takes; 0 for an empty step."""
        decode_s = self.decode_fixed_s + decoding * self.decode_sequence_s if decoding else 0.0
        if not prefill_tokens:
            return decode_s
        prefill_s = self.prefill_fixed_s + (prefill_tokens + decoding) * self.prefill_token_s
        return max(decode_s, self.prefill_floor_s, prefill_s)

    def scaled(self, *, prefill: float = 1.0, decode: float = 1.0, name: str | None = None) -> "GpuProfile":
        """The same GPU with its prefill and decode times multiplied: 7.0 is seven times slower, 0.1 runs ten times
        as fast (the time scale of a demo)."""
        return GpuProfile(
            name=name or self.name,
            prefill_floor_s=self.prefill_floor_s * prefill,
            prefill_fixed_s=self.prefill_fixed_s * prefill,
            prefill_token_s=self.prefill_token_s * prefill,
            decode_fixed_s=self.decode_fixed_s * decode,
            decode_sequence_s=self.decode_sequence_s * decode,
        )


class Measurement(msgspec.Struct, frozen=True):
    """One row of the table: median times of a batch of equal prompts."""

    model: str
    gpu: str
    tensor_parallel: int
    prompt_tokens: int
    batch: int
    prefill_ms: float
    token_ms: float

    @property
    def profile_name(self) -> str:
        return f"{self.model}/{self.gpu}/tp{self.tensor_parallel}"


def measurements() -> list[Measurement]:
    """The table as it is kept in this package."""
    text = resources.files("chaos.engine").joinpath("gpu_measurements.csv").read_text()
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return [msgspec.convert(row, Measurement, strict=False) for row in rows]


@functools.cache
def profiles() -> dict[str, GpuProfile]:
    """Every measured combination by name, such as `llama2-70b/h100-80gb/tp8`."""
    groups: dict[str, list[Measurement]] = {}
    for row in measurements():
        groups.setdefault(row.profile_name, []).append(row)
    return {name: fit(name, rows) for name, rows in groups.items()}


def profile(name: str) -> GpuProfile:
    """The profile called `name`; raises ValueError that lists the names there are."""
    found = profiles().get(name)
    if found is None:
        raise ValueError(f"gpu is {name!r}: no such profile; use one of {', '.join(sorted(profiles()))}")
    return found


def fit(name: str, rows: Iterable[Measurement]) -> GpuProfile:
    """Fit both lines to the measurements of one GPU kind."""
    prefill = [(float(row.prompt_tokens * row.batch), row.prefill_ms / 1e3) for row in rows]
    inside = [(tokens, seconds) for tokens, seconds in prefill if 1_024 <= tokens <= FIT_TOKENS_MAX]
    decode = [(float(row.batch), row.token_ms / 1e3) for row in rows if row.prompt_tokens == 512]
    prefill_fixed_s, prefill_token_s = _line(inside)
    decode_fixed_s, decode_sequence_s = _line(decode)
    return GpuProfile(
        name=name,
        prefill_floor_s=min(seconds for _, seconds in prefill),
        prefill_fixed_s=prefill_fixed_s,
        prefill_token_s=prefill_token_s,
        decode_fixed_s=decode_fixed_s,
        decode_sequence_s=decode_sequence_s,
    )


def _line(points: list[Point]) -> Point:
    """Relative least squares y = a + b x with a >= 0: a negative start would make short prompts free."""
    weights = [1.0 / (y * y) for _, y in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    slope = sum(w * (x - mean_x) * y for w, (x, y) in zip(weights, points, strict=True)) / sum(
        w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True)
    )
    start = mean_y - slope * mean_x
    if start >= 0:
        return start, slope
    through_origin = sum(x / y for x, y in points) / sum((x / y) ** 2 for x, y in points)
    return 0.0, through_origin
