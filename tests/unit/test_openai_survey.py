"""Large bodies are looked through in turns: what would hold up the loop is refused, and the rest is found exactly."""

import asyncio
import json
import time
from collections.abc import Callable

import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.model.request import Api
from gir.tasks import in_turns
from gir.wire import survey as limits
from gir.wire.openai import DEPTH_MAX, edited, peek, with_include_usage, with_model
from gir.wire.survey import LARGE_BYTES, Survey, is_large

HOLD_S = 0.03
"""The longest a body may hold up the loop."""
SLACK = 3.0
"""For machines that are busy with other things."""
BODY_BYTES = 30_000_000
HEAD = b'{"model":"m","messages":'


def surveyed(body: bytes, slice_bytes: int = limits.SLICE_BYTES) -> Survey:
    found = Survey(body, DEPTH_MAX, slice_bytes=slice_bytes)
    for _ in found.steps():
        pass
    return found


def refused(body: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        surveyed(body)
    return caught.value


def filled(head: bytes, unit: bytes, tail: bytes, separator: bytes = b"", length: int = BODY_BYTES) -> bytes:
    count = (length - len(head) - len(tail)) // (len(unit) + len(separator))
    return head + separator.join([unit] * count) + tail


def test_only_what_could_hold_up_the_loop_is_surveyed() -> None:
    assert not is_large(b" " * LARGE_BYTES)
    assert is_large(b" " * (LARGE_BYTES + 1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (HEAD + b"[" + b"[]," * 25_001 + b"1]}", "more than 50000 brackets"),
        (HEAD + b"[" + b"1," * 1_000_001 + b"1]}", "more than 1000000 values"),
        (b'{"model":"m"' + b',"k":1' * 10_001 + b"}", "more than 10000 fields"),
        (HEAD + b"[" + b'"model",' * 10_001 + b"1]}", "more than 10000 mentions"),
        (HEAD + b"[" + b" " * limits.OUTSIDE_BYTES_MAX + b"]}", "bytes outside strings"),
        (HEAD + b'"' + b"\\u6f22" * 2_000_001 + b'"}', "more than 2000000 backslashes"),
        (HEAD + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}", "nests deeper than 200"),
        (HEAD + b'"\xff"}', "not valid UTF-8 at byte 25"),
        (HEAD + b'"' + b"x" * limits.SLICE_BYTES + b"\xc3" + b'"}', "not valid UTF-8 at byte"),
    ],
)
def test_more_structure_than_a_decoder_takes_in_its_stride_is_refused(body: bytes, words: str) -> None:
    error = refused(body)
    assert error.kind is ErrorKind.BAD_JSON
    assert words in error.message


@pytest.mark.parametrize("name", ["model", "user", "prompt_cache_key", "metadata", "n", "max_tokens"])
def test_a_name_as_long_as_a_text_is_refused(name: str) -> None:
    error = refused(f'{{"{name}":"{"x" * limits.NAME_BYTES_MAX}"}}'.encode())
    assert (error.kind, error.param) == (ErrorKind.BAD_REQUEST, name)


def test_what_just_fits_passes() -> None:
    for body in (
        HEAD + b"[" + b"[]," * 24_990 + b"1]}",
        HEAD + b"[" + b"1," * 999_000 + b"1]}",
        b'{"model":"m"' + b',"k":1' * 9_999 + b"}",
        HEAD + b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1) + b"}",
        HEAD + b'"' + "漢".encode() * 100_000 + b'"}',
        HEAD + b'"' + b"\\u6f22" * 2_000_000 + b'"}',
    ):
        assert len(surveyed(body).model_at) == 1


def test_what_is_no_json_is_left_to_the_decoder() -> None:
    for body in (b"", b"not json", HEAD, b'{"model', b"}}}}", b'"\\', b"[1,2"):
        surveyed(body)


@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 5, 7, 64])
def test_keys_are_found_wherever_a_slice_ends(slice_bytes: int) -> None:
    body = (
        r'{"a":"\\","model":"x\"model\":","b":{"model":1,"é":"\\\"model"},"mod\u0065l" : "y",'
        r'"stream_options":{"include_usage":false},"z":["model","漢","\u0022"]}'
    ).encode()
    found = surveyed(body, slice_bytes)
    assert found.model_at == [body.index(b'"model"'), body.index(b'"mod\\u0065l"')]
    assert found.options_at == [body.index(b'"stream_options"')]
    assert found.options == b'{"include_usage":false}'
    with pytest.raises(RequestError, match="model is given more than once"):
        peek(Api.CHAT, body, found)


@pytest.mark.parametrize(
    "options", ["", '"stream_options":null,', '"stream_options": {"include_usage": false, "x": 1},']
)
@pytest.mark.parametrize("model", [None, "other"])
@pytest.mark.parametrize("usage", [False, True])
def test_edits_by_survey_are_those_without(options: str, model: str | None, usage: bool) -> None:
    body = f'{{"messages":[{{"content":"caf\\u00e9 \\"model\\": 1"}}],{options}"model" : "m","n":1}}'.encode()
    expected = with_model(body, model) if model else body
    expected = with_include_usage(expected) if usage else expected
    assert edited(surveyed(body, 8), model=model, include_usage=usage) == expected
    json.loads(expected)


def test_peek_reads_the_same_of_a_surveyed_body() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "é" * 700_000}], "n": 2}).encode()
    assert is_large(body)
    seen, plain = peek(Api.CHAT, body, surveyed(body)), peek(Api.CHAT, body)
    assert (seen.model, seen.choices, bytes(seen.prompt)) == (plain.model, plain.choices, bytes(plain.prompt))


async def test_others_get_their_turn_between_the_steps() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.get_running_loop().create_task(other())
    await in_turns(Survey(filled(HEAD + b'"', b"text ", b'"}', length=2_000_000), DEPTH_MAX).steps())
    task.cancel()
    assert turns >= 2_000_000 // limits.SLICE_BYTES


HOSTILE: dict[str, Callable[[], bytes]] = {
    "text": lambda: filled(HEAD + b'"', b"hello world ", b'"}'),
    "lists": lambda: filled(HEAD + b"[", b"[]", b"]}", b","),
    "texts": lambda: filled(b'{"model":"m","prompt":[', b'"a"', b"]}", b","),
    "escapes": lambda: filled(HEAD + b'"', b"\\u0041", b'"}'),
    "keys in texts": lambda: filled(b'{"model":"m","prompt":[', b'"\\"model"', b"]}", b","),
    "backslashes": lambda: filled(HEAD + b'"', b"\\\\", b'"}'),
    "quotes": lambda: filled(HEAD + b'"', b'\\"', b'"}'),
    "members": lambda: filled(b'{"model":"m"', b',"k":1', b"}"),
    "models": lambda: filled(b'{"model":"m"', b',"model":"m"', b"}"),
    "user": lambda: filled(b'{"model":"m","user":"', b"\\u0041", b'"}'),
    "other scripts": lambda: filled(HEAD + b'"', "漢".encode(), b'"}'),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_no_body_holds_up_the_loop(name: str) -> None:
    """F32: 30 MB of whatever structure; CPU time of the thread, since that is what others wait for."""
    body = HOSTILE[name]()
    found = Survey(body, DEPTH_MAX)
    steps, longest_s = found.steps(), 0.0
    ended: str | None = None
    while ended is None:
        began_s = time.thread_time()
        try:
            ended = next(steps, "passed")
        except RequestError:
            ended = "refused"
        longest_s = max(longest_s, time.thread_time() - began_s)
    began_s = time.thread_time()
    if ended == "passed":
        peek(Api.CHAT, body, found)
    assert max(longest_s, time.thread_time() - began_s) < SLACK * HOLD_S
