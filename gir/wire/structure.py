"""Refuse bodies whose shape engines could read differently from us: duplicate `model` keys, and nesting too deep.

Exact answers need the outline of the whole body (`jsonscan`), tens of microseconds for a long prompt. Nearly every
request can be cleared by cheaper proofs, so those come first; a body that none of them clears is outlined.
"""

import msgspec
from msgspec import Raw

from gir.wire import jsonscan, refusals

DEPTH_MAX = 200
"""Objects and arrays open at once. Tool schemas reach some 20; decoders of engines give up near 1,000."""

MODEL_KEY = jsonscan.Key("model")

_SCAN_WHOLE_MAX = 2_048
"""Up to this many bytes, looking through the whole body is cheaper than cutting the prompt out first."""
_HOPS_MAX = 16
"""Brackets in a prompt up to which hopping from one to the next beats decoding it."""
_OBJECTS_MAX = 5_000
"""Opening braces up to which a prompt is decoded to see whether it is flat; a dict takes twenty times its bytes."""
_ESCAPED_LETTER = rb"\u006"
"""Every letter of `model` begins like this when it is written as an escape."""

_Scalar = str | int | float | bool | None
_Part = dict[str, str | int | float | bool | dict[str, _Scalar] | None]
_Message = dict[str, str | int | float | bool | list[_Part] | dict[str, _Scalar] | None]
_decode_flat = msgspec.json.Decoder(str | list[_Message] | None).decode
"""Accepts what clients send as prompts: text, or messages of text and parts. None of it nests deeper than six."""


def check(body: bytes, prompt_key: bytes, prompt: Raw) -> None:
    """Raise RequestError if `body` names `model` twice or nests deeper than DEPTH_MAX.

    `body` is well-formed JSON; `prompt` is the raw value of its top-level `prompt_key` (given in quotes), maybe empty.
    """
    rest = body if len(body) <= _SCAN_WHOLE_MAX else _without(body, prompt_key, prompt)
    try:
        if _may_repeat_model(rest) and len(jsonscan.key_offsets(rest, MODEL_KEY)) > 1:
            refusals.refuse_duplicate("model")
        if not _is_shallow(body, rest, prompt) and jsonscan.depth(body) > DEPTH_MAX:
            refusals.refuse_depth(DEPTH_MAX)
    except jsonscan.OutlineError as error:
        refusals.refuse_outline(error)


def _may_repeat_model(rest: bytes) -> bool:
    return rest.count(MODEL_KEY.literal) != 1 or _ESCAPED_LETTER in rest


def _is_shallow(body: bytes, rest: bytes, prompt: Raw) -> bool:
    """Proof that `body` stays within DEPTH_MAX; False when there is none as cheap as this."""
    if rest.count(b"{") + rest.count(b"[") > DEPTH_MAX // 2:
        return False
    if rest is body:
        return True
    return _hops_few(body) or (body.count(b"{") <= _OBJECTS_MAX and _is_flat(prompt))


def _without(body: bytes, key: bytes, value: Raw) -> bytes:
    """`body` less `value`, found behind the first mention of `key`; `body` itself when it is not found there.

    What is cut is one whole JSON value, so no top-level key is lost with it.
    """
    mention = body.find(key)
    if mention < 0 or not value:
        return body
    start = body.find(memoryview(value)[:1], mention + len(key))
    if not body.startswith(value, start):
        return body
    return body[:start] + body[start + len(value) :]


def _hops_few(body: bytes) -> bool:
    """Whether there are at most _HOPS_MAX of each opening bracket: `find` leaps over long text, `count` walks it."""
    for bracket in (b"{", b"["):
        at = -1
        for _ in range(_HOPS_MAX):
            at = body.find(bracket, at + 1)
            if at < 0:
                break
        else:
            return False
    return True


def _is_flat(prompt: Raw) -> bool:
    try:
        _decode_flat(prompt)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
