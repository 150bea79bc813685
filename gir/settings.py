"""Settings files of both tiers, read strictly: no duplicate or unknown keys; complaints name field, value and fix."""

import difflib
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from gir.model.policy.base import Section

FILE_BYTES_MAX = 4 * 1024 * 1024

T = TypeVar("T")

_AT = re.compile(r"(?s)^(?P<what>.*?)(?: - at `(?:key in )?\$(?P<path>.*)`)?$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>.*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>.*)`$")


class ConfigError(ValueError):
    """A file cannot be used; the message says which field, what stands there and what to write instead."""


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice: one of the two would silently not count."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise ConfigError(f"line {key.start_mark.line + 1}: {name} is given twice; keep one of them")
            seen.add(name)
        return super().construct_mapping(node, deep)


class Secret(Section, frozen=True, kw_only=True):
    """A credential: exactly one of `env` (variable), `file` (its first line) and `value`."""

    env: str | None = None
    file: str | None = None
    value: str | None = None

    def __repr__(self) -> str:
        return f"<Secret from {'env' if self.env else 'file' if self.file else 'value'}>"

    def read(self, field: str) -> str:
        """The credential. Raises ConfigError naming `field`."""
        if sum(source is not None for source in (self.env, self.file, self.value)) != 1:
            raise ConfigError(f"{field}: give exactly one of env, file and value")
        if self.env is not None:
            text = os.environ.get(self.env, "")
            where = f"the environment variable {self.env}"
        elif self.file is not None:
            text, where = read_text(Path(self.file)).strip(), self.file
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
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506  # a SafeLoader underneath
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{source}: line {line}: {error.problem}; correct the YAML there") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}; correct the YAML there") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply; flatten it") from None
    try:
        return msgspec.convert({} if data is None else data, type_)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {_explain(str(error), data, type_)}") from None


def _explain(message: str, data: Any, type_: Any) -> str:
    """msgspec's complaint with the value that stands there and a way out."""
    match = _AT.match(message)
    assert match is not None, "the pattern matches every text"
    what, path = match["what"], (match["path"] or "").lstrip(".")
    if unknown := _UNKNOWN.match(what):
        field = f"{path}.{unknown['name']}" if path else unknown["name"]
        near = difflib.get_close_matches(unknown["name"], _field_names(type_), n=1)
        return f"{field} is no known key; {f'did you mean {near[0]}?' if near else 'remove it'}"
    if missing := _MISSING.match(what):
        return f"{f'{path}.' if path else ''}{missing['name']} is missing; add it"
    return f"{path or 'the file'} is {_value_at(data, path)!r}: {what[:1].lower()}{what[1:]}; change it"


def _value_at(data: Any, path: str) -> Any:
    """The value at a path such as `pods.static[2].url`; the innermost that exists."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        try:
            data = data[name] if name else data[int(index)]
        except (KeyError, IndexError, TypeError):
            break
    text = repr(data)
    return data if len(text) <= 80 else f"{text[:77]}..."


def _field_names(type_: Any) -> set[str]:
    """Every key that may stand anywhere in `type_`: good enough to guess a typing error."""
    info = msgspec.inspect.type_info(type_)
    names: set[str] = set()
    todo: list[Any] = [info]
    done: set[int] = set()
    while todo:
        one = todo.pop()
        if id(one) in done:
            continue
        done.add(id(one))
        if isinstance(one, msgspec.inspect.StructType):
            names.update(field.encode_name for field in one.fields)
            todo += [field.type for field in one.fields]
        for attribute in ("item_type", "value_type"):
            if hasattr(one, attribute):
                todo.append(getattr(one, attribute))
        todo += getattr(one, "types", ())
    return names


def host_and_port(text: str, field: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65_535:
        raise ConfigError(f"{field} is {text!r}: write host:port, such as 127.0.0.1:8101 (port 0 takes any)")
    return host.removeprefix("[").removesuffix("]"), int(port)
