"""Whatever a body holds, `peek` reads it as `json` does or refuses it by a rule with a name; nothing else happens."""

import json
from typing import Any

import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.model.request import Api
from gir.wire.openai import DEPTH_MAX, MODEL_CHARS_MAX, Peek, peek, with_include_usage, with_model
from tests.fuzz.mutate import corpus, mutants

WORDS = (
    *(b'"model"', b'"model":', b'"mod\\u0065l":"z",', b'"messages":', b'"stream_options":', b'"include_usage"', b"NaN"),
    *(b"Infinity", b"{", b"}", b"[", b"]", b'"', b"\\", b"\\\\", b'\\"', b"\\u006d", b"\\ud800", b":", b",", b"null"),
    *(b"\xff", b"\xc3\xa9", b" ", b"\n", b"\x00", b"[" * 120, b'{"a":' * 120, b"x" * 2_100, b"1e999", b"true"),
)


class Pairs(list[tuple[str, Any]]):
    """An object with its members in order, repeated keys included."""


def read(data: bytes) -> Any:
    """What a strict reader makes of `data`; raises ValueError or RecursionError when it makes nothing of it."""

    def constant(name: str) -> Any:
        raise ValueError(name)

    return json.loads(data.decode(), object_pairs_hook=Pairs, parse_constant=constant, parse_int=lambda _: 0)


def depth(value: Any) -> int:
    members = [item for _, item in value] if isinstance(value, Pairs) else value if isinstance(value, list) else None
    return 0 if members is None else 1 + max(map(depth, members), default=0)


def rule_against(data: bytes, error: RequestError) -> str:
    """The named rule by which `data` was refused; '' when none applies."""
    if error.kind is ErrorKind.BAD_REQUEST and error.param is not None and error.param != "model":
        return "a field that routing needs has a type of no use"
    try:
        value = read(data)
    except (ValueError, RecursionError):
        return "not JSON"
    if not isinstance(value, Pairs):
        return "no object"
    models = [item for name, item in value if name == "model"]
    if len(models) != 1 or not isinstance(models[0], str):
        return "no single model string"
    if not models[0] or len(models[0]) > MODEL_CHARS_MAX or not models[0].isprintable():
        return "no model's name"
    if depth(value) > DEPTH_MAX:
        return "too deep"
    return "unpaired surrogate" if "surrogate" in error.message or "truncated" in error.message else ""


def outcome(api: Api, data: bytes) -> Peek | RequestError:
    try:
        return peek(api, data)
    except RequestError as error:
        return error


def examine(data: bytes) -> None:
    for api in Api:
        seen = outcome(api, data)
        if isinstance(seen, RequestError):
            assert seen.kind in (ErrorKind.BAD_JSON, ErrorKind.BAD_REQUEST)
            assert len(seen.message) < 600
            assert rule_against(data, seen), f"{api} refused {data!r}: {seen}"
            continue
        value = read(data)
        assert [item for name, item in value if name == "model"] == [seen.model]
        assert depth(value) <= DEPTH_MAX
        assert peek(api, with_model(data, "other/model")).model == "other/model"
        if api is Api.CHAT:
            assert isinstance(seen.resumable, bool)
            assert peek(api, with_include_usage(data)).include_usage


@pytest.mark.parametrize("name", [name for name, _ in corpus("body")])
def test_corpus_is_read_or_refused_by_a_named_rule(name: str) -> None:
    data = dict(corpus("body"))[name]
    examine(data)
    for end in range(min(len(data), 400)):
        examine(data[:end])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_damaged_bodies_are_read_or_refused_by_a_named_rule(seed: int) -> None:
    for data in mutants("body", seed, 2_000, WORDS):
        examine(data)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_damaged_bodies_are_read_or_refused_by_a_named_rule(seed: int) -> None:
    for data in mutants("body", seed, 3_000, WORDS):
        examine(data)
