"""The words with which a request body is refused: field, value and fix, and never a word of a prompt."""

import re
from typing import NoReturn

import msgspec

from gir.model.errors import ErrorKind, RequestError

VALUE_CHARS_MAX = 40
"""Longest excerpt of an offending value."""

_PROMPT_FIELDS = frozenset({"messages", "prompt", "input", "instructions", "system", "documents", "text_1", "text_2"})
_FIELD_PATH = re.compile(r" - at `\$\.([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_TYPES = re.compile(r"(?<=[`| ])(?:int|float|str|bool|array|object)(?=[`| ])")
_JSON_WORDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "a list",
    "object": "an object",
}
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def refuse_json(error: msgspec.DecodeError) -> NoReturn:
    """The bytes are not one well-formed JSON text."""
    detail = str(error).removeprefix("JSON is malformed: ")
    raise RequestError(
        ErrorKind.BAD_JSON,
        f"the body is not valid JSON: {detail}; send one JSON object in UTF-8 (NaN, Infinity, comments, a byte order "
        "mark, unpaired surrogates and trailing text are not JSON)",
    ) from None


def refuse_utf8(error: UnicodeDecodeError) -> NoReturn:
    """A string holds bytes that are not UTF-8."""
    raise RequestError(
        ErrorKind.BAD_JSON, f"the body is not valid UTF-8 at byte {error.start}: {error.reason}; encode it as UTF-8"
    ) from None


def refuse_depth(depth_max: int) -> NoReturn:
    """Objects and arrays nest too deep."""
    raise RequestError(
        ErrorKind.BAD_JSON, f"the body nests deeper than {depth_max} objects and arrays; flatten it"
    ) from None


def refuse_outline(error: ValueError) -> NoReturn:
    """There are too many brackets or mentions of one key to look through."""
    raise RequestError(ErrorKind.BAD_JSON, f"the body's structure is too large: {error}; send fewer objects") from None


def refuse_long(name: str, length: int, length_max: int) -> NoReturn:
    """A field that names something is as long as a text."""
    raise RequestError(
        ErrorKind.BAD_REQUEST, f"{name} is {length} bytes long, the limit is {length_max}; shorten it", param=name
    )


def refuse_duplicate(name: str) -> NoReturn:
    """A key that decides where the request goes is given more than once."""
    raise RequestError(
        ErrorKind.BAD_REQUEST,
        f"{name} is given more than once, and which one counts would depend on the reader; send it once",
        param=name,
    )


def refuse_model(model: str, chars_max: int) -> NoReturn:
    """The model is a string that cannot be a model's name."""
    if not model:
        problem = "model is empty"
    elif len(model) > chars_max:
        problem = f"model is {len(model)} characters long, the limit is {chars_max}"
    else:
        problem = f"model is {shortened(repr(model))}, which holds unprintable characters"
    raise RequestError(ErrorKind.BAD_REQUEST, f"{problem}; name one of those that GET /v1/models lists", param="model")


def refuse_field(body: bytes, error: msgspec.ValidationError) -> NoReturn:
    """A field has a type that cannot mean what routing needs."""
    text = str(error)
    if missing := _MISSING.match(text):
        name = missing[1]
        fix = "; name one of those that GET /v1/models lists" if name == "model" else ""
        raise RequestError(ErrorKind.BAD_REQUEST, f"{name} is missing{fix}", param=name) from None
    path = _FIELD_PATH.search(text)
    expectation = _TYPES.sub(lambda word: _JSON_WORDS[word[0]], text[: path.start()] if path else text)
    expectation = expectation.replace("`", "").replace(" | ", " or ")
    if path is None:
        raise RequestError(
            ErrorKind.BAD_REQUEST, f"the body is unusable: {expectation}; send one JSON object"
        ) from None
    raise RequestError(
        ErrorKind.BAD_REQUEST, f"{path[1]}{_value_of(body, path[1])}: {_lower_first(expectation)}", param=path[1]
    ) from None


def shortened(text: str, chars_max: int = VALUE_CHARS_MAX) -> str:
    """`text` cut to `chars_max` characters, with a sign that it was."""
    return text if len(text) <= chars_max else f"{text[:chars_max]}..."


def _value_of(body: bytes, path: str) -> str:
    """` is VALUE` when the value at the top-level `path` may be shown."""
    name = path.split(".", 1)[0].split("[", 1)[0]
    if name in _PROMPT_FIELDS:
        return ""
    try:
        value = bytes(_decode_fields(body)[name])
    except (msgspec.DecodeError, RecursionError, KeyError):
        return ""
    shown = shortened(value[: 4 * VALUE_CHARS_MAX].decode(errors="replace"))
    return f" is {shown}" if name == path else ""


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
