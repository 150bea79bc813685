"""Configuration files of both tiers, read strictly: what a file says takes effect, or it is refused with the reason.

Every complaint names the file, the line, the field, the value that stands there and what to write instead. A key given
twice or unknown is refused, because one of the two would silently not count; so are YAML aliases, which can blow a
small file up to any size. Secrets may be named by environment variable or file; their values appear in no message.
"""

import difflib
import math
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from gir.model.policy.base import Section

FILE_BYTES_MAX = 1024 * 1024
VALUE_CHARS_MAX = 80

T = TypeVar("T")

_COMPLAINT = re.compile(r"(?s)^(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")
_STEP = re.compile(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_SECRET = re.compile(r"(?:^|[._\]])(?:value|token|password|secret)(?:$|[.\[])")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ConfigError(ValueError):
    """A file cannot be used; the message says which field, what stands there and what to write instead."""


class Secret(Section, frozen=True, kw_only=True):
    """A credential: exactly one of `env`, `file` and `value`."""

    env: str | None = None
    """Name of the environment variable that holds it."""
    file: str | None = None
    """File whose text, without surrounding white space, is the credential; relative to the configuration file."""
    value: str | None = None
    """The credential itself: for demos."""

    def __repr__(self) -> str:
        return f"<Secret from {'env' if self.env else 'file' if self.file else 'value'}>"

    def read(self, field: str, base: Path = Path()) -> str:
        """The credential. Raises ConfigError naming `field`."""
        if sum(source is not None for source in (self.env, self.file, self.value)) != 1:
            raise ConfigError(f"{field}: give exactly one of env, file and value")
        if self.env is not None:
            text, where = os.environ.get(self.env, ""), f"the environment variable {self.env}"
        elif self.file is not None:
            text, where = read_text(base / self.file).strip(), self.file
        else:
            text, where = self.value or "", "value"
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigError(f"{field}: {where} holds no usable credential; give printable ASCII without spaces")
        return text


def read_text(path: Path) -> str:
    """The file's text. Raises ConfigError when it is missing, unreadable, not UTF-8 or too large."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX} bytes; is it the right file?")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; give the path of a readable file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8") from None


def parse(text: str, type_: type[T], *, source: str) -> T:
    """`text` as YAML, converted to `type_`. `source` begins every complaint. Raises ConfigError."""
    data, lines = _load(text, source)
    if infinite := _not_finite(data):
        path, value = infinite
        raise ConfigError(f"{source}{_line_of(path, lines)}: {_shown(path)} is {value}: give a finite number")
    try:
        return msgspec.convert({} if data is None else data, type_)
    except msgspec.ValidationError as error:
        path, complaint = _explain(str(error), data, type_)
    raise ConfigError(f"{source}{_line_of(path, lines)}: {complaint}")


def host_and_port(text: str, field: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises ConfigError naming `field`."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65_535 or (":" in bare) != host.startswith("["):
        raise ConfigError(f"{field} is {text!r}: write host:port, such as 127.0.0.1:8080 or [::1]:8080 (port 0: any)")
    return bare, int(port)


def _load(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """The document's data, and the line of each path in it."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, {}
        lines = _survey(node)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{source}:{line}: {error.problem}; correct the YAML there") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}; correct the YAML there") from None
    except ConfigError as error:
        raise ConfigError(f"{source}{error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply; flatten it") from None
    except ValueError as error:  # such as a date of 2026-13-01
        raise ConfigError(f"{source}: {error}; correct the value, or put it in quotes if it is text") from None
    finally:
        loader.dispose()


def _survey(root: yaml.Node) -> dict[str, int]:
    """Line of each path below `root`. Raises ConfigError (`:line: ...`) for duplicate keys and aliases."""
    lines: dict[str, int] = {}
    met: set[int] = set()
    todo: list[tuple[str, yaml.Node]] = [("", root)]
    while todo:
        path, node = todo.pop()
        line = lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in met:
            raise ConfigError(f":{line}: {_shown(path)} is an alias of an anchor; write the value out")
        met.add(id(node))
        children: list[tuple[str, yaml.Node]] = []
        if isinstance(node, yaml.SequenceNode):
            children = [(f"{path}[{index}]", item) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below, line = f"{path}.{key.value}", key.start_mark.line + 1
                if below in lines:
                    raise ConfigError(
                        f":{line}: {_shown(below)} is given twice, first on line {lines[below]}; keep one of them"
                    )
                lines[below] = line
                children.append((below, value))
        todo += reversed(children)  # in the order of the file
    return lines


def _not_finite(data: Any) -> tuple[str, float] | None:
    """First NaN or infinity, which every bound would let through."""
    todo: list[tuple[str, Any]] = [("", data)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return path, value
        if isinstance(value, dict):
            todo += [(f"{path}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            todo += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    return None


def _line_of(path: str, lines: dict[str, int]) -> str:
    """`:line` of the path, or of the innermost part of it that has one; empty when none has."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return f":{lines[path]}" if path in lines else ""


def _explain(message: str, data: Any, type_: Any) -> tuple[str, str]:
    """Path msgspec complains about, and the complaint with the value that stands there and a way out."""
    match = _COMPLAINT.match(message)
    assert match is not None, "the pattern matches every text"
    what, path = match["what"], match["path"] or ""
    if unknown := _UNKNOWN.match(what):
        name, known = unknown["name"], _keys_at(type_, path)
        near = difflib.get_close_matches(name, known, n=1)
        way_out = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known) or 'none'}"
        return f"{path}.{name}", f"{_shown(f'{path}.{name}')} is no known key; {way_out}"
    if missing := _MISSING.match(what):
        name = missing["name"]
        return path, f"{_shown(f'{path}.{name}')} is missing; add it"
    if what.startswith("Invalid enum value"):
        choices = [one.values for one in _types_at(type_, path) if isinstance(one, msgspec.inspect.LiteralType)]
        what = f"use {' or '.join(map(str, choices[0]))}" if choices else what
    value = _value_at(data, path)
    quotes = "; put it in quotes" if "`str`" in what and not isinstance(value, str | dict | list | None) else ""
    held = "" if _SECRET.search(path) else f" is {_cut(value)}"
    return path, f"{_shown(path)}{held}: {what[:1].lower()}{what[1:].replace('`', '')}{quotes}"


def _shown(path: str) -> str:
    return path.lstrip(".") or "the file"


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= VALUE_CHARS_MAX else f"{text[: VALUE_CHARS_MAX - 3]}..."


def _value_at(data: Any, path: str) -> Any:
    """The value at `path`; the innermost that exists."""
    for name, index in _STEP.findall(path):
        try:
            data = data[name] if name else data[int(index)]
        except (KeyError, IndexError, TypeError, ValueError):
            break
    return data


def _keys_at(type_: Any, path: str) -> list[str]:
    """Keys the structs at `path` of `type_` know, sorted."""
    structs = [one for one in _types_at(type_, path) if isinstance(one, msgspec.inspect.StructType)]
    return sorted({field.encode_name for struct in structs for field in struct.fields})


def _types_at(type_: Any, path: str) -> list[Any]:
    """Types that may stand at `path` of `type_`."""
    found = _flat([msgspec.inspect.type_info(type_)])
    for name, _ in _STEP.findall(path):
        below: list[Any] = []
        for one in found:
            if isinstance(one, msgspec.inspect.StructType):
                below += [field.type for field in one.fields if field.encode_name == name]
            elif not name:
                below += [getattr(one, kind) for kind in ("item_type", "value_type") if hasattr(one, kind)]
        found = _flat(below)
    return found


def _flat(types: list[Any]) -> list[Any]:
    """`types` with unions and annotated types taken apart."""
    flat: list[Any] = []
    todo = list(types)
    while todo:
        one = todo.pop()
        if isinstance(one, msgspec.inspect.UnionType):
            todo += one.types
        elif isinstance(one, msgspec.inspect.Metadata):
            todo.append(one.type)
        else:
            flat.append(one)
    return flat
