"""The two edits a router may make to a body change one value and nothing else."""

import pytest

from gir.model.errors import RequestError
from gir.model.request import Api
from gir.wire.openai import peek, with_include_usage, with_model


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b'{"model":"a"}', b'{"model":"b/c"}'),
        (b'{ "x" : [ 1 ],\r\n\t"model" \n:\t"a" , "y":null }', b'{ "x" : [ 1 ],\r\n\t"model" \n:\t"b/c" , "y":null }'),
        (b'{"model":"a\\"\\\\","y":"z"}', b'{"model":"b/c","y":"z"}'),
        (b'{"messages":[{"model":"n"}],"model":"a"}', b'{"messages":[{"model":"n"}],"model":"b/c"}'),
        (b'{"user":"model","model":"a"}', b'{"user":"model","model":"b/c"}'),
        (b'{"user":"model" ,"model":"a"}', b'{"user":"model" ,"model":"b/c"}'),
        (b'{"x":["model"],"y":{"model":1},"model":"a"}', b'{"x":["model"],"y":{"model":1},"model":"b/c"}'),
        (b'{"x":"{[{","model":"a"}', b'{"x":"{[{","model":"b/c"}'),
        (b'{"mod\\u0065l":"a"}', b'{"mod\\u0065l":"b/c"}'),
        (b'{"not \\"model":1,"model":"a"}', b'{"not \\"model":1,"model":"b/c"}'),
        (b'{"not \\"model" :"q","model" :"a"}', b'{"not \\"model" :"q","model" :"b/c"}'),
        (b'{"x":"\\"model\\":\\"q\\"","model":"a"}', b'{"x":"\\"model\\":\\"q\\"","model":"b/c"}'),
    ],
)
def test_model_is_replaced_in_place(body: bytes, changed: bytes) -> None:
    assert with_model(body, "b/c") == changed


def test_new_model_is_written_as_json() -> None:
    assert with_model(b'{"model":"a"}', 'q"\u00e9') == '{"model":"q\\"\u00e9"}'.encode()


def test_body_without_model_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no top-level"):
        with_model(b'{"x":{"model":"a","y":{"model":"b"}}}', "b")


@pytest.mark.parametrize(
    ("body", "changed"),
    [
        (b'{"model":"a"}', b'{"stream_options":{"include_usage":true},"model":"a"}'),
        (b' {\n"model":"a"}', b' {"stream_options":{"include_usage":true},\n"model":"a"}'),
        (b'{"stream_options":null,"model":"a"}', b'{"stream_options":{"include_usage":true},"model":"a"}'),
        (b'{"stream_options": { } }', b'{"stream_options": {"include_usage":true } }'),
        (b'{"stream_options":{"x":1}}', b'{"stream_options":{"include_usage":true,"x":1}}'),
        (b'{"stream_options":{"include_usage": false }}', b'{"stream_options":{"include_usage": true }}'),
        (b'{"stream_options":{"include_usage":null,"x":1}}', b'{"stream_options":{"include_usage":true,"x":1}}'),
        (b'{"stream_options":{"include_usage":true}}', b'{"stream_options":{"include_usage":true}}'),
        (
            b'{"x":{"stream_options":{"include_usage":false}},"stream_options":{"include_usage":false}}',
            b'{"x":{"stream_options":{"include_usage":false}},"stream_options":{"include_usage":true}}',
        ),
        (
            b'{"stream_options":{"include_usage":true},"stream_options":{"include_usage":false}}',
            b'{"stream_options":{"include_usage":true},"stream_options":{"include_usage":true}}',
        ),
        (
            b'{"x":{"stream_options":1}}',
            b'{"stream_options":{"include_usage":true},"x":{"stream_options":1}}',
        ),
    ],
)
def test_usage_is_asked_for_in_place(body: bytes, changed: bytes) -> None:
    assert with_include_usage(body) == changed


def test_options_lost_among_countless_strings_are_a_refusal_not_a_crash() -> None:
    keys = b",".join(b'"k%d":1' % number for number in range(250_000))
    body = b'{"model":"a",%b,"x":"\\u00e9","stream_options":{}}' % keys
    assert peek(Api.CHAT, body).model == "a"
    with pytest.raises(RequestError, match="strings; at most"):
        with_include_usage(body)
