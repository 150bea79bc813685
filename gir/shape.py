"""What in a document does not fit its type: all of it, and in an operator's words instead of a library's.

A decoder stops at its first complaint, and an operator with three typing errors would start a router four times. So the
document is walked beside the type, and only single values are given to the decoder.
"""

import difflib
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

VALUE_CHARS_MAX = 80
_KEYS_SHOWN_MAX = 5
_SECRET = re.compile(r"(?:^|[._\]])(?:value|token|password|secret)(?:$|[.\[])")
_OWN_WORDS = re.compile(r"^(?:Expected|Invalid|Object|Integer|Number)\b")


def misfits(value: Any, type_: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, complaint) for each thing in `value` that `type_` does not take, in the order of the document.

    Paths look like `.policy.tiers[0].name`; the whole document's is empty.
    """
    options = _options(type_)
    met = False
    for found in _inside(value, options, path):
        met = True
        yield found
    if met:
        return
    try:
        msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        hidden = _SECRET.search(path) or any(getattr(option, "hides_value", False) for option in options)
        held = "" if hidden else f" is {cut(value)}"
        message = str(error)
        fix = f"write {wanted(type_)}" if _OWN_WORDS.match(message) else message
        yield path, f"{shown(path)}{held}: {fix}{_quotes(value, options)}"


def shown(path: str) -> str:
    """A path as an operator writes it."""
    return path.lstrip(".") or "the file"


def cut(value: Any) -> str:
    """A value as the file spells it, shortened. Of a mapping or list only the kind: it may hold secrets."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."


def wanted(type_: Any) -> str:
    """What `type_` takes: "an integer from 1 to 256 or null"."""
    return _words(inspect.type_info(type_))


def _inside(value: Any, options: list[Any], path: str) -> Iterator[tuple[str, str]]:
    """Complaints about the parts of a mapping or list."""
    for option in options:
        origin, arguments = typing.get_origin(option), typing.get_args(option)
        if isinstance(value, dict):
            if isinstance(option, type) and issubclass(option, msgspec.Struct):
                yield from _in_struct(value, option, path)
                return
            if origin is dict:
                for key, item in value.items():
                    if isinstance(key, str):
                        yield from misfits(item, arguments[1], f"{path}.{key}")
                    else:
                        yield path, f"{shown(path)} has the key {cut(key)}: write text; put it in quotes"
                return
        if isinstance(value, list) and origin in (tuple, list, frozenset):
            if origin is tuple and arguments[-1] is not Ellipsis:
                kinds = arguments if len(arguments) == len(value) else ()
            else:
                kinds = (arguments[0],) * len(value)
            for index, (item, kind) in enumerate(zip(value, kinds, strict=False)):
                yield from misfits(item, kind, f"{path}[{index}]")
            return


def _in_struct(value: dict[Any, Any], struct: type[msgspec.Struct], path: str) -> Iterator[tuple[str, str]]:
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    for key, item in value.items():
        below = f"{path}.{key}"
        if key in fields:
            yield from misfits(item, fields[key].type, below)
            continue
        near = difflib.get_close_matches(str(key), fields, n=1)
        way_out = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(fields))}"
        yield below, f"{shown(below)} is no known key; {way_out}"
    for name, field in fields.items():
        if field.required and name not in value:
            yield path, f"{shown(f'{path}.{name}')} is missing; add it: {wanted(field.type)}"


def _options(type_: Any) -> list[Any]:
    """The types a value may have, with unions and annotations taken apart."""
    origin = typing.get_origin(type_)
    if origin is typing.Annotated:
        return _options(typing.get_args(type_)[0])
    if origin in (typing.Union, types.UnionType):
        return [option for each in typing.get_args(type_) for option in _options(each)]
    return [type_]


def _quotes(value: Any, options: list[Any]) -> str:
    """A hint for text that YAML took for something else, such as `yes` or 8080."""
    text = any(getattr(option, "__supertype__", option) is str for option in options)
    return "; put it in quotes" if text and value is not None and not isinstance(value, str | dict | list) else ""


def _words(info: inspect.Type) -> str:
    match info:
        case inspect.Metadata(type=held, extra=extra):
            return str((extra or {}).get("words", "")) or _words(held)
        case inspect.UnionType(types=several):
            ordered = sorted(several, key=lambda one: isinstance(one, inspect.NoneType))
            return " or ".join(map(_words, ordered))
        case inspect.LiteralType(values=values):
            *first, last = map(str, values)
            return f"{', '.join(first)} or {last}" if first else last
        case inspect.IntType():
            return f"an integer{_bounds(info)}"
        case inspect.FloatType():
            return f"a number{_bounds(info)}"
        case inspect.StrType():
            return f"text{_length(info, 'characters')}{_pattern(info)}"
        case inspect.VarTupleType() | inspect.ListType() | inspect.FrozenSetType():
            return f"a list{_length(info, 'entries')}"
        case inspect.TupleType(item_types=items):
            return f"a list of {len(items)}: {', '.join(map(_words, items))}"
        case inspect.StructType(fields=fields) if len(fields) <= _KEYS_SHOWN_MAX:
            return f"a mapping (lines of `key: value`; keys: {', '.join(field.encode_name for field in fields)})"
        case _:
            return _SIMPLE.get(type(info), "something else")


_SIMPLE: dict[type, str] = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "null",
    inspect.DictType: "a mapping (lines of `key: value`)",
    inspect.StructType: "a mapping (lines of `key: value`)",
    inspect.DateTimeType: "a time with its zone, such as 2026-01-31T12:00:00Z",
}


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    low = f"of at least {info.ge:g}" if info.ge is not None else f"above {info.gt:g}" if info.gt is not None else ""
    high = f"at most {info.le:g}" if info.le is not None else f"below {info.lt:g}" if info.lt is not None else ""
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:g} to {info.le:g}"
    return "".join(f" {each}" for each in (low, "and" if low and high else "", high) if each)


def _length(info: Any, unit: str) -> str:
    if info.min_length and info.max_length:
        return f" of {info.min_length} to {info.max_length} {unit}"
    if info.min_length:
        return " that is not empty" if info.min_length == 1 else f" of at least {info.min_length} {unit}"
    return f" of at most {info.max_length} {unit}" if info.max_length else ""


def _pattern(info: inspect.StrType) -> str:
    return f" that matches {info.pattern}" if info.pattern else ""
