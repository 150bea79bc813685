"""What `peek` reads of a body, and what it refuses, naming field, value and fix."""

import json

import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.model.request import Api
from gir.wire import jsonscan
from gir.wire.openai import COUNT_MAX, DEPTH_MAX, api_of, peek

LONG = "the quick brown fox jumps over the lazy dog " * 100


def body(**fields: object) -> bytes:
    return json.dumps({"model": "llama", **fields}).encode()


def refusal(raw: bytes, api: Api = Api.CHAT) -> RequestError:
    with pytest.raises(RequestError) as caught:
        peek(api, raw)
    return caught.value


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/v1/chat/completions", Api.CHAT),
        ("/v1/completions", Api.COMPLETIONS),
        ("/v1/embeddings", Api.EMBEDDINGS),
        ("/v1/responses", Api.RESPONSES),
        ("/v1/messages", Api.MESSAGES),
        ("/v1/rerank", Api.RERANK),
        ("/v1/score", Api.SCORE),
        ("/tokenize", Api.TOKENIZE),
        ("/v1/audio/transcriptions", Api.OTHER),
        ("/v1/messages/count_tokens", Api.OTHER),
        ("/", None),
        ("/v1", None),
        ("/v1/", None),
        ("/metrics", None),
        ("/v1/../metrics", None),
        ("/v1//metrics", None),
        ("/v1/%2e%2e/metrics", None),
        ("/v1/chat/completions/", None),
    ],
)
def test_path_names_api(path: str, api: Api | None) -> None:
    assert api_of(path) is api


def test_chat_fields_are_read() -> None:
    seen = peek(
        Api.CHAT,
        b'{ "stream" : true, "messages" : [ {"role":"user","content":"hi"} ] ,"n":2, "user":"u7",'
        b'"max_tokens":5,"max_completion_tokens":9,"stream_options":{"include_usage":true},"model":"llama","x":{"y":1}}',
    )
    assert (seen.model, seen.stream, seen.include_usage, seen.output_tokens_max, seen.choices) == (
        "llama",
        True,
        True,
        9,
        2,
    )
    assert bytes(seen.prompt) == b'[ {"role":"user","content":"hi"} ]'
    assert seen.session_key == "u7"


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [("text", 2), ([1, 2, 3], 2), ([], 2), (["a", "b", "c"], 6), ([[1, 2], [3]], 4), (None, 2)],
)
def test_each_prompt_brings_its_own_choices(prompt: object, choices: int) -> None:
    assert peek(Api.COMPLETIONS, body(prompt=prompt, n=2)).choices == choices


def test_absent_and_null_fields_mean_the_default() -> None:
    seen = peek(Api.CHAT, b'{"model":"m","stream":null,"n":null,"max_tokens":null,"stream_options":null,"user":null}')
    assert (seen.stream, seen.include_usage, seen.output_tokens_max, seen.choices, seen.session_key) == (
        False,
        False,
        None,
        1,
        None,
    )
    assert bytes(seen.prompt) == b""


@pytest.mark.parametrize(
    ("api", "raw", "prompt"),
    [
        (Api.COMPLETIONS, b'{"model":"m","prompt":[1,2, 3]}', b"[1,2, 3]"),
        (Api.EMBEDDINGS, b'{"model":"m","input":"a"}', b'"a"'),
        (Api.RESPONSES, b'{"model":"m","instructions":"be kind","input":"a"}', b'"be kind""a"'),
        (Api.RESPONSES, b'{"model":"m","input":"a"}', b'"a"'),
        (Api.MESSAGES, b'{"model":"m","system":"s","messages":[]}', b'"s"[]'),
        (Api.RERANK, b'{"model":"m","query":"q","documents":["d"]}', b'["d"]'),
        (Api.SCORE, b'{"model":"m","text_1":"q","text_2":["d"]}', b'["d"]'),
        (Api.TOKENIZE, b'{"model":"m","prompt":"p"}', b'"p"'),
        (Api.OTHER, b'{"model":"m","user":7}', b""),
    ],
)
def test_prompt_is_the_raw_slice_the_model_reads(api: Api, raw: bytes, prompt: bytes) -> None:
    assert bytes(peek(api, raw).prompt) == prompt


@pytest.mark.parametrize(
    ("api", "fields", "key"),
    [
        (Api.CHAT, {"user": "u", "prompt_cache_key": "k"}, "k"),
        (Api.RESPONSES, {"user": "u", "conversation": "c"}, "c"),
        (Api.RESPONSES, {"user": "u", "conversation": {"id": "c"}}, "c"),
        (Api.RESPONSES, {"prompt_cache_key": "k", "conversation": "c"}, "k"),
        (Api.MESSAGES, {"metadata": {"user_id": "u"}}, "u"),
        (Api.EMBEDDINGS, {"user": "u"}, "u"),
        (Api.EMBEDDINGS, {}, None),
    ],
)
def test_session_key_follows_the_documented_order(api: Api, fields: dict[str, object], key: str | None) -> None:
    assert peek(api, body(**fields)).session_key == key


def test_output_limit_of_each_api() -> None:
    assert peek(Api.COMPLETIONS, body(max_tokens=4)).output_tokens_max == 4
    assert peek(Api.RESPONSES, body(max_output_tokens=4)).output_tokens_max == 4
    assert peek(Api.MESSAGES, body(max_tokens=4)).output_tokens_max == 4
    assert peek(Api.CHAT, body(max_tokens=-1)).output_tokens_max is None
    assert peek(Api.CHAT, body(max_tokens=10**400)).output_tokens_max == COUNT_MAX
    assert peek(Api.CHAT, body(n=10**400)).choices == COUNT_MAX


@pytest.mark.parametrize(
    ("fields", "resumable"),
    [
        ({"messages": [{"role": "user", "content": "hi"}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, True),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, False),
        ({"tools": []}, True),
        ({"tools": [{"type": "function"}]}, False),
        ({"response_format": {"type": "json_object"}}, False),
        ({"logprobs": True}, False),
        ({"logprobs": False}, True),
        ({"guided_json": {"type": "object"}}, False),
        ({"n": 2}, False),
    ],
)
def test_only_plain_text_chats_are_resumable(fields: dict[str, object], resumable: bool) -> None:
    assert peek(Api.CHAT, body(**fields)).resumable is resumable


def test_only_chat_is_resumable() -> None:
    assert not peek(Api.COMPLETIONS, body(prompt="p")).resumable


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "truncated"),
        (b"{", "truncated"),
        (b'{"model":"a"} x', "trailing characters"),
        (b"\xef\xbb\xbf" + b'{"model":"a"}', "byte 0"),
        ('{"model":"a"}'.encode("utf-16"), "byte 0"),
        (b'{"model":"a","temperature":NaN}', "byte 27"),
        (b'{"model":"a","messages":[Infinity]}', "byte 25"),
        (b'{"model":"a","x":-Infinity}', "byte 18"),
        (b'{"model":"a","x":"\xff"}', "not valid UTF-8 at byte 18"),
        (b'{"model":"a","messages":"\xed\xa0\x80"}', "not valid UTF-8"),
        (b'{"model":"\xff"}', "UTF-8 encoded string"),
        (b'{"model":"a","x":"\\ud800 alone"}', "surrogate"),
        (b'{"model":"a","x":"\n"}', "invalid character"),
    ],
)
def test_malformed_json_is_refused_with_its_place(raw: bytes, words: str) -> None:
    error = refusal(raw)
    assert error.kind is ErrorKind.BAD_JSON
    assert words in error.message


@pytest.mark.parametrize(
    ("raw", "param", "message"),
    [
        (b"[]", None, "the body is unusable: Expected an object, got a list; send one JSON object"),
        (b"{}", "model", "model is missing; name one of those that GET /v1/models lists"),
        (b'{"model":7}', "model", "model is 7: expected a string, got an integer"),
        (b'{"model":null}', "model", "model is null: expected a string, got null"),
        (b'{"model":""}', "model", "model is empty; name one of those that GET /v1/models lists"),
        (b'{"model":"a","stream":"yes"}', "stream", 'stream is "yes": expected a boolean or null, got a string'),
        (
            b'{"model":"a","max_tokens":"9"}',
            "max_tokens",
            'max_tokens is "9": expected an integer or null, got a string',
        ),
        (
            b'{"model":"a","stream_options":{"include_usage":3}}',
            "stream_options.include_usage",
            "stream_options.include_usage: expected a boolean or null, got an integer",
        ),
    ],
)
def test_unusable_field_is_refused_by_name_value_and_fix(raw: bytes, param: str | None, message: str) -> None:
    error = refusal(raw)
    assert (error.kind, error.param, error.message) == (ErrorKind.BAD_REQUEST, param, message)


def test_model_that_could_split_a_header_is_refused() -> None:
    assert "unprintable" in refusal(b'{"model":"a\\r\\nx-evil: 1"}').message
    assert "300 characters" in refusal(b'{"model":"%b"}' % (b"a" * 300)).message


@pytest.mark.parametrize("padding", ["", LONG])
@pytest.mark.parametrize(
    "raw",
    [
        '{"model":"a","messages":"%s","model":"b"}',
        '{"model":"a","messages":"%s","mod\\u0065l":"b"}',
        '{"\\u006Dodel":"a","messages":"%s","model" : "b"}',
        '{"messages":"%s","model":"a","model":"a"}',
        '{"messages":["model",{"model":1}],"x":"%s","model":"a","model":"a"}',
        '{"x":{"messages":"%s"},"model":"a","messages":"%s","model":"a"}',
    ],
)
def test_second_model_key_is_refused_in_any_spelling(raw: str, padding: str) -> None:
    error = refusal(raw.replace("%s", padding).encode())
    assert (error.kind, error.param) == (ErrorKind.BAD_REQUEST, "model")
    assert "more than once" in error.message


@pytest.mark.parametrize("padding", ["", LONG])
@pytest.mark.parametrize(
    "raw",
    [
        '{"model":"a","messages":[{"content":"%s \\"model\\": \\u006d"}],"user":"model"}',
        '{"model":"a","messages":[{"model":"x"},"model"],"tools":[{"model":{"model":1}}],"x":"%s"}',
        '{"user":"model","messages":"%s\\\\","model":"a"}',
        '{"x":{"messages":"%s"},"messages":"%s","model":"a"}',
    ],
)
def test_model_elsewhere_in_the_body_is_not_a_second_key(raw: str, padding: str) -> None:
    assert peek(Api.CHAT, raw.replace("%s", padding).encode()).model == "a"


@pytest.mark.parametrize("padding", ["", LONG])
@pytest.mark.parametrize("place", ["messages", "x"])
def test_nesting_is_bounded_exactly(padding: str, place: str) -> None:
    def nested(levels: int) -> bytes:
        opened = "[" * (levels - 1) + "]" * (levels - 1)
        return f'{{"pad":"{padding}}}]","model":"a","{place}":{opened}}}'.encode()

    assert peek(Api.CHAT, nested(DEPTH_MAX)).model == "a"
    assert f"deeper than {DEPTH_MAX}" in refusal(nested(DEPTH_MAX + 1)).message
    assert f"deeper than {DEPTH_MAX}" in refusal(nested(100_000)).message


def test_brackets_in_text_are_not_nesting() -> None:
    code = "if (a[0]) { b = {}; } " * 400 + "{[" * 300
    assert peek(Api.CHAT, body(messages=[{"role": "user", "content": code}])).model == "llama"
    assert peek(Api.CHAT, body(messages=[{"role": "user", "content": code, "x": [[[[[1]]]]]}])).model == "llama"


def test_long_conversations_are_not_nesting() -> None:
    turns = [{"role": "user", "content": [{"type": "text", "text": "{["}]}] * 500
    assert peek(Api.CHAT, body(messages=turns)).model == "llama"


def test_body_of_nothing_but_brackets_is_refused() -> None:
    raw = b'{"model":"a","messages":[' + b"{}," * 300_000 + b"{}]}"
    assert "structure is too large" in refusal(raw).message


@pytest.mark.parametrize("place", ["messages", "x"])
def test_body_of_countless_strings_is_refused_before_it_is_taken_apart(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = b'{"model":"a","%b":[' % place.encode() + b'{"model":"b"},' * 300_000 + b"{}]}"
    monkeypatch.setattr(jsonscan, "_outline", lambda _: pytest.fail("it was taken apart, which takes seconds"))
    assert "strings; at most 200000 are accepted" in refusal(raw).message


def test_refusals_never_quote_the_prompt() -> None:
    for raw in (
        b'{"model":"a","prompt":"secret words","max_tokens":"x"}',
        b'{"prompt":"secret words"}',
        b'{"model":"a","prompt":"secret words" oops}',
        b'{"model":"a","prompt":"secret words","model":"b"}',
    ):
        assert "secret" not in refusal(raw, Api.COMPLETIONS).message
