"""Token counts as engines report them while streaming, under the names of each API."""

from collections.abc import Mapping
from typing import Any

from gir.model.request import Usage


def merge_usage(known: Usage | None, fields: Mapping[str, Any]) -> Usage:
    """`known` updated with what `fields` reports; a field that is missing, null or no count keeps its value.

    OpenAI counts cached tokens inside the prompt; Anthropic counts tokens read from and written to the cache beside
    `input_tokens`, so they are added here.
    """
    known = known if known is not None else Usage()
    prompt = _count(fields, "prompt_tokens")
    if prompt is None:
        prompt = _count(fields, "input_tokens")
        if prompt is not None:
            prompt += _count(fields, "cache_read_input_tokens") or 0
            prompt += _count(fields, "cache_creation_input_tokens") or 0
    completion = _first(fields, "completion_tokens", "output_tokens")
    cached = _first(_details(fields, "prompt_tokens_details", "input_tokens_details"), "cached_tokens")
    if cached is None:
        cached = _count(fields, "cache_read_input_tokens")
    reasoning = _first(_details(fields, "completion_tokens_details", "output_tokens_details"), "reasoning_tokens")
    return Usage(
        prompt_tokens=known.prompt_tokens if prompt is None else prompt,
        completion_tokens=known.completion_tokens if completion is None else completion,
        cached_tokens=known.cached_tokens if cached is None else cached,
        reasoning_tokens=known.reasoning_tokens if reasoning is None else reasoning,
    )


def _count(fields: Mapping[str, Any], name: str) -> int | None:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _first(fields: Mapping[str, Any], *names: str) -> int | None:
    return next((count for name in names if (count := _count(fields, name)) is not None), None)


def _details(fields: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    return next((value for name in names if isinstance(value := fields.get(name), dict)), {})
