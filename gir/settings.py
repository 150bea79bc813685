"""Configuration files of both tiers, read strictly: what a file says takes effect, or it is refused with the reason.

Every complaint names the file, the line, the field, the value that stands there and what to write instead. A key given
twice or unknown is refused, because one of the two would silently not count; so are YAML aliases, which can blow a
small file up to any size. Secrets may be named by environment variable or file; their values appear in no message.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import yaml

from gir.model.policy.base import Section
from gir.shape import misfits, shown

FILE_BYTES_MAX = 1024 * 1024

T = TypeVar("T")
Further = Callable[[T, frozenset[str]], Iterable[str]]

_FIELD = re.compile(r"[A-Za-z_]\w*(?:\.[\w-]+|\[\d+\])*")
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ConfigError(ValueError):
    """A file cannot be used; the message says which field, what stands there and what to write instead."""


class Secret(Section, frozen=True, kw_only=True):
    """A credential: exactly one of `env`, `file` and `value`."""

    hides_value: ClassVar[bool] = True
    """Whatever stands in its place is not shown."""

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


class Source:
    """A file's name and the line of each of its fields, to put before complaints."""

    __slots__ = ("_lines", "_name")

    def __init__(self, name: str, lines: dict[str, int]) -> None:
        self._name = name
        self._lines = lines

    def __repr__(self) -> str:
        return f"<Source {self._name}>"

    def refuse(self, complaints: Iterable[str]) -> None:
        """Raise ConfigError with a line for each of `complaints`, in the order of the file; nothing when there is none.

        Each begins with the field it is about, as in `policy.tiers[0].spill_at is 0: ...`.
        """
        placed = sorted((self._line(complaint), complaint) for complaint in dict.fromkeys(complaints))
        if placed:
            raise ConfigError("\n".join(f"{self._name}{f':{line}' if line else ''}: {text}" for line, text in placed))

    def _line(self, complaint: str) -> int:
        """Line of the field a complaint begins with, or of the innermost part of it that has one."""
        field = _FIELD.match(complaint)
        path = f".{field[0]}" if field else ""
        while path and path not in self._lines:
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self._lines.get(path, 0)


def parse(text: str, type_: type[T], *, source: str) -> T:
    """`text` as YAML, converted to `type_`. `source` begins every complaint. Raises ConfigError with all of them."""
    return parse_with_source(text, type_, source=source)[0]


def parse_with_source(text: str, type_: type[T], *, source: str, also: Further[T] | None = None) -> tuple[T, Source]:
    """The same, with where its fields stand, for what is found out later.

    When sections do not fit their types, `also(rest, faulty)` adds what is wrong with the file without them, so that
    one look is enough; `faulty` names the sections that are left out of `rest`.
    """
    data, lines = _load(text, source)
    data = {} if data is None else data
    where = Source(source, lines)
    where.refuse(_not_finite(data))
    try:
        return msgspec.convert(data, type_), where
    except msgspec.ValidationError as error:
        found = list(misfits(data, type_))
        complaints = [complaint for _, complaint in found]
        if also is not None and isinstance(data, dict):
            faulty = frozenset(re.split(r"[.\[]", path.lstrip("."), maxsplit=1)[0] for path, _ in found)
            complaints += _of_the_rest(data, faulty, type_, also)
        where.refuse(complaints or [str(error)])
        raise


def _of_the_rest(data: dict[str, Any], faulty: frozenset[str], type_: type[T], also: Further[T]) -> list[str]:
    try:
        rest = msgspec.convert({name: value for name, value in data.items() if name not in faulty}, type_)
    except msgspec.ValidationError:
        return []  # a section that must be there is missing or faulty itself
    return list(also(rest, faulty))


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
        lines: dict[str, int] = {}
        complaints = list(_survey(node, lines))
        Source(source, lines).refuse(complaints)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise ConfigError(f"{source}:{line}: {error.problem}; correct the YAML there") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {str(error).splitlines()[0]}; correct the YAML there") from None
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply; flatten it") from None
    except ValueError as error:  # such as a date of 2026-13-01
        raise ConfigError(f"{source}: {error}; correct the value, or put it in quotes if it is text") from None
    finally:
        loader.dispose()


def _survey(root: yaml.Node, lines: dict[str, int]) -> Iterator[str]:
    """Note the line of each path below `root` in `lines`; complaints about duplicate keys and aliases."""
    met: set[int] = set()
    todo: list[tuple[str, yaml.Node]] = [("", root)]
    while todo:
        path, node = todo.pop()
        lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in met:
            yield f"{shown(path)} is an alias of an anchor; write the value out"
            continue
        met.add(id(node))
        children: list[tuple[str, yaml.Node]] = []
        if isinstance(node, yaml.SequenceNode):
            children = [(f"{path}[{index}]", item) for index, item in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below, line = f"{path}.{key.value}", key.start_mark.line + 1
                if below in lines:
                    first, lines[below] = lines[below], line  # the later one is where a reader looks
                    yield f"{shown(below)} is given twice, first on line {first}; keep one of them"
                lines[below] = line
                children.append((below, value))
        todo += reversed(children)  # in the order of the file


def _not_finite(data: Any) -> Iterator[str]:
    """NaN and infinities, which every bound would let through."""
    todo: list[tuple[str, Any]] = [("", data)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{shown(path)} is {value}: give a finite number"
        if isinstance(value, dict):
            todo += [(f"{path}.{key}", item) for key, item in value.items()]
        elif isinstance(value, list):
            todo += [(f"{path}[{index}]", item) for index, item in enumerate(value)]
