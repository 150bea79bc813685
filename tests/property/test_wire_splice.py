"""For every body: an edit changes exactly the value it names, and what `peek` accepts is what `json` reads."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gir.model.errors import RequestError
from gir.model.request import Api
from gir.wire.jsonscan import Key, depth, key_offsets, value_offset
from gir.wire.openai import edited, peek, with_include_usage, with_model
from gir.wire.survey import Survey

NAMES = st.sampled_from(["model", "stream_options", "include_usage", "messages", "x", 'q"', "\\", "mode", "m\u00f6del"])
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=12) | NAMES
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)
OPTIONS = st.none() | st.dictionaries(st.sampled_from(["include_usage", "x"]), st.none() | st.booleans(), max_size=2)
GAPS = st.sampled_from(["", " ", "\n", "\t \r\n"])


@st.composite
def bodies(draw: Callable[[Any], Any]) -> tuple[dict[str, Any], bytes]:
    """A request object and one of its spellings: whitespace, key order and escapes vary."""
    value = {name: draw(VALUES) for name in draw(st.lists(NAMES, unique=True, max_size=5))}
    value.pop("stream_options", None)
    if draw(st.booleans()):
        value["stream_options"] = draw(OPTIONS)
    if draw(st.booleans()):
        value["pad"] = '{[\\"' * 600  # past the size up to which the whole body is scanned
    value["model"] = draw(st.text(min_size=1, max_size=8).filter(str.isprintable))
    value = {name: value[name] for name in draw(st.permutations(list(value)))}
    gap, colon_gap = draw(GAPS), draw(GAPS)
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=(f"{gap},{gap}", f"{colon_gap}:{gap}"))
    if draw(st.booleans()):
        text = text.replace('"model"', '"mo\\u0064el"')
    return value, f"{gap}{text}{gap}".encode()


@given(bodies(), st.text(min_size=1, max_size=8))
def test_model_splice_changes_the_model_alone(case: tuple[dict[str, Any], bytes], new: str) -> None:
    value, raw = case
    spliced = with_model(raw, new)
    assert json.loads(spliced) == {**value, "model": new}
    assert list(json.loads(spliced)) == list(value)
    assert with_model(spliced, "same") == with_model(raw, "same")


@given(bodies())
def test_usage_splice_changes_include_usage_alone(case: tuple[dict[str, Any], bytes]) -> None:
    value, raw = case
    expected = {**value, "stream_options": {**(value.get("stream_options") or {}), "include_usage": True}}
    spliced = with_include_usage(raw)
    assert json.loads(spliced) == expected
    assert with_include_usage(spliced) == spliced
    assert with_include_usage(raw, absent=peek(Api.CHAT, raw).options_absent) == spliced


@given(bodies(), st.integers(min_value=1, max_value=40), st.none() | st.text(min_size=1, max_size=8), st.booleans())
def test_a_survey_finds_the_same_places_however_it_is_sliced(
    case: tuple[dict[str, Any], bytes], slice_bytes: int, model: str | None, usage: bool
) -> None:
    _, raw = case
    found = Survey(raw, 200, slice_bytes=slice_bytes)
    for _ in found.steps():
        pass
    assert found.model_at == key_offsets(raw, Key("model"))
    expected = with_model(raw, model) if model is not None else raw
    assert edited(found, model=model, include_usage=usage) == (with_include_usage(expected) if usage else expected)


@given(bodies())
def test_peek_reads_what_json_reads(case: tuple[dict[str, Any], bytes]) -> None:
    value, raw = case
    assert peek(Api.CHAT, raw).model == value["model"]


@given(bodies(), st.integers(min_value=0, max_value=1))
def test_a_second_model_key_is_always_seen(case: tuple[dict[str, Any], bytes], end: int) -> None:
    _, raw = case
    text = raw.decode().strip()
    doubled = f'{text[:-1]},"model":"z"}}' if end else f'{{"model":"z",{text[1:]}'
    with pytest.raises(RequestError) as caught:
        peek(Api.CHAT, doubled.encode())
    assert caught.value.param == "model"


@given(VALUES)
def test_depth_is_that_of_the_value(value: Any) -> None:
    def of(node: Any) -> int:
        if isinstance(node, dict):
            return 1 + max(map(of, node.values()), default=0)
        return 1 + max(map(of, node), default=0) if isinstance(node, list) else 0

    assert depth(json.dumps(value).encode()) == of(value)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), GAPS)
def test_every_top_level_occurrence_of_a_key_is_found(pairs: list[tuple[str, Any]], gap: str) -> None:
    members = (f"{gap}{json.dumps(name)}{gap}:{gap}{json.dumps(value)}" for name, value in pairs)
    raw = ("{" + ",".join(members) + gap + "}").encode()
    offsets = key_offsets(raw, Key("model"))
    wanted = [value for name, value in pairs if name == "model"]
    decoder = json.JSONDecoder()
    text = raw.decode()
    assert [decoder.raw_decode(text, value_offset(raw, offset))[0] for offset in offsets] == wanted
