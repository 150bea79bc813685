"""Token counts as engines report them, under the names of each API: the one place that knows how they add up. Pure."""

from collections.abc import Mapping
from typing import Any

from gir.model.request import Usage

TOKENS_MAX = 1_000_000_000
"""A larger count is none: one broken answer must not spoil sums and estimates for ever."""
_NOTHING_KNOWN = Usage()


def merge_usage(known: Usage | None, fields: Mapping[str, Any]) -> Usage | None:
    """`known` updated with the usage object `fields`; a field that is missing, null or no count keeps its value.

    A whole answer is merged into None, a stream report by report (Anthropic sends the two halves in different
    events). An object that counts nothing leaves `known` as it was: nothing reported is not zero reported.

    OpenAI counts cached tokens inside the prompt; Anthropic counts tokens read from and written to the cache beside
    `input_tokens`, so they are added here. Servers of embeddings and rankings may report a total alone: all prompt.
    """
    get = fields.get
    prompt = _count(get("prompt_tokens"))
    if prompt is None:
        prompt = _input_tokens(fields)
    completion = _count(get("completion_tokens"))
    if completion is None:
        completion = _count(get("output_tokens"))
    cached = _inside(get("prompt_tokens_details") or get("input_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _count(get("cache_read_input_tokens"))
    reasoning = _inside(get("completion_tokens_details") or get("output_tokens_details"), "reasoning_tokens")
    if prompt is None and completion is None:
        prompt = _count(get("total_tokens")) if known is None else None
        if prompt is None and cached is None and reasoning is None:
            return known
    known = known if known is not None else _NOTHING_KNOWN
    return Usage(
        prompt_tokens=known.prompt_tokens if prompt is None else prompt,
        completion_tokens=known.completion_tokens if completion is None else completion,
        cached_tokens=known.cached_tokens if cached is None else cached,
        reasoning_tokens=known.reasoning_tokens if reasoning is None else reasoning,
    )


def _input_tokens(fields: Mapping[str, Any]) -> int | None:
    """Prompt tokens of the Messages and Responses APIs; the latter's details say that cached ones are inside."""
    tokens = _count(fields.get("input_tokens"))
    if tokens is None or isinstance(fields.get("input_tokens_details"), dict):
        return tokens
    read, written = _count(fields.get("cache_read_input_tokens")), _count(fields.get("cache_creation_input_tokens"))
    return tokens + (read or 0) + (written or 0)


def _inside(details: object, name: str) -> int | None:
    return _count(details.get(name)) if isinstance(details, dict) else None


def _count(value: object) -> int | None:
    # The exact type, as True and 1.5 count nothing.
    return value if type(value) is int and 0 <= value <= TOKENS_MAX else None
