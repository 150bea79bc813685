"""Token usage as engines report it, in the spelling of each API."""

import msgspec

from gir.model.request import Api, Usage


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Reported(msgspec.Struct):
    """Union of the OpenAI, Responses and Anthropic spellings; no engine mixes them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Answer(msgspec.Struct):
    usage: _Reported | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_reported = msgspec.json.Decoder(_Reported | None).decode


def read_usage(api: Api, body: bytes) -> Usage | None:
    """Usage in a whole JSON answer; None when it holds none, or none that can be read."""
    try:
        return _usage(api, _decode_answer(body).usage)
    except (msgspec.DecodeError, RecursionError):
        return None


def parse_usage(api: Api, usage: bytes | msgspec.Raw) -> Usage | None:
    """Usage from the raw JSON of a `usage` object alone; None when it cannot be read."""
    try:
        return _usage(api, _decode_reported(usage))
    except (msgspec.DecodeError, RecursionError):
        return None


def _usage(api: Api, reported: _Reported | None) -> Usage | None:
    if reported is None:
        return None
    if reported.input_tokens is not None or reported.output_tokens is not None:
        return _from_input_output(api, reported)
    prompt = reported.prompt_tokens
    if prompt is None and reported.completion_tokens is None:
        if reported.total_tokens is None:
            return None
        prompt = reported.total_tokens  # rerank and embedding servers that count nothing else
    details, produced = reported.prompt_tokens_details, reported.completion_tokens_details
    return Usage(
        prompt_tokens=_count(prompt),
        completion_tokens=_count(reported.completion_tokens),
        cached_tokens=_count(details.cached_tokens) if details else 0,
        reasoning_tokens=_count(produced.reasoning_tokens) if produced else 0,
    )


def _from_input_output(api: Api, reported: _Reported) -> Usage:
    """The Responses API counts cached tokens inside `input_tokens`; the Messages API counts them beside it."""
    details, produced = reported.input_tokens_details, reported.output_tokens_details
    read = _count(reported.cache_read_input_tokens)
    beside = read + _count(reported.cache_creation_input_tokens) if api is Api.MESSAGES else 0
    return Usage(
        prompt_tokens=_count(reported.input_tokens) + beside,
        completion_tokens=_count(reported.output_tokens),
        cached_tokens=_count(details.cached_tokens) if details else read,
        reasoning_tokens=_count(produced.reasoning_tokens if produced else None),
    )


def _count(tokens: int | None) -> int:
    return tokens if tokens is not None and tokens > 0 else 0
