"""Examples in a document: each a curl command and the answer below it, sent again and compared.

What differs from run to run is compared by kind: numbers always, strings under the keys in VOLATILE. An object with
`"...": "..."` names some of its keys, a list that ends with `"..."` its first entries.
"""

import http.client
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

MORE = "..."
VOLATILE = {
    *("affinity", "by", "cluster", "created", "created_at", "detail", "digest", "fleet", "id", "item_id", "limiter"),
    *("name", "note", "pod", "reason", "region", "request_id", "request_ids", "retry-after", "router", "router_id"),
    *("system_fingerprint", "tier", "trace_id", "url", "version", "x-gir-attempts", "x-gir-cluster", "x-gir-pod"),
    *("x-gir-reason", "x-ratelimit-reset-requests", "x-request-id"),
}
_BLOCKS = re.compile(r"^```sh\n(curl .*?)^```\n+```(json|http|text)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Example(msgspec.Struct, frozen=True):
    """One command and the answer that is printed below it."""

    command: str
    kind: str
    answer: str


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    reason: str
    headers: dict[str, str]
    body: str


def examples(text: str) -> Iterator[Example]:
    """All examples of a document, in order."""
    for command, kind, answer in _BLOCKS.findall(text):
        yield Example(command.replace("\\\n", " ").strip(), kind, answer)


def send(command: str, variables: Mapping[str, str]) -> Answer:
    """Send what curl would; ValueError for an option that no example needs."""
    for name, value in variables.items():
        command = command.replace(f"${name}", value)
    method, url, body = "", "", None
    headers: dict[str, str] = {"accept": "*/*"}
    words = iter(shlex.split(command)[1:])
    for word in words:
        if word in ("-s", "-i", "-N", "-sN", "-si", "-siN"):
            continue
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(":")
            headers[name.strip()] = value.strip()
        elif word == "--json":
            body = next(words)
            headers["content-type"] = "application/json"
        elif word.startswith("-"):
            raise ValueError(f"{word} in: {command}")
        else:
            url = word
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20.0)
    try:
        target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request(method or ("GET" if body is None else "POST"), target, body, headers)
        answer = connection.getresponse()
        named = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, answer.reason, named, answer.read().decode())
    finally:
        connection.close()


def differences(example: Example, answer: Answer) -> list[str]:
    """What the document says and the answer does not; empty when they agree."""
    printed = example.answer
    found: list[str] = []
    if example.kind == "http":
        head, _, printed = printed.partition("\n\n")
        status, *lines = head.splitlines()
        if status != f"HTTP/1.1 {answer.status} {answer.reason}":
            found.append(f"{status}, not {answer.status} {answer.reason}")
        for line in lines:
            name, _, value = line.partition(": ")
            if name not in answer.headers:
                found.append(f"no header {name}")
            elif name not in VOLATILE and _kind(value) != _kind(answer.headers[name]):
                found.append(f"{name}: {value}, not {answer.headers[name]}")
    if printed.startswith(("data:", "event:")):
        return found + list(_of_streams(printed, answer.body))
    if example.kind == "text":
        return found if _kind(printed) == _kind(answer.body) else [*found, f"{printed!r}, not {answer.body!r}"]
    if not printed.strip():
        return found
    try:
        return found + list(_compared(json.loads(printed), json.loads(answer.body), ""))
    except json.JSONDecodeError:
        return [*found, f"not JSON: {answer.body[:300]}"]


def _kind(text: str) -> str:
    """Text with its numbers made equal."""
    return re.sub(r"\d+(\.\d+)?", "0", text.strip())


def _of_streams(printed: str, body: str) -> Iterator[str]:
    """Both as events; a printed line `...` stands for any number of them."""
    wanted, had = ([line for line in text.splitlines() if line.strip()] for text in (printed, body))
    if MORE in wanted:
        at = wanted.index(MORE)
        tail = len(wanted) - at - 1
        wanted, had = wanted[:at] + wanted[at + 1 :], had[:at] + (had[-tail:] if tail else [])
    if len(wanted) != len(had):
        yield f"{len(wanted)} lines, not {len(had)}"
    for one, other in zip(wanted, had, strict=False):
        name, _, data = one.partition(": ")
        other_name, _, other_data = other.partition(": ")
        if name != other_name:
            yield f"{one}, not {other}"
        elif data.startswith("{") and other_data.startswith("{"):
            yield from _compared(json.loads(data), json.loads(other_data), data[:40])
        elif data != other_data:
            yield f"{one}, not {other}"


def _compared(wanted: Any, had: Any, path: str) -> Iterator[str]:
    key = path.rpartition(".")[2]
    if isinstance(wanted, dict) and isinstance(had, dict):
        partly = wanted.pop(MORE, None) is not None
        if not wanted.keys() <= had.keys() or not (partly or wanted.keys() == had.keys()):
            yield f"{path or 'answer'} has the keys {sorted(had)}, not {sorted(wanted)}"
        for name in wanted.keys() & had.keys():
            yield from _compared(wanted[name], had[name], f"{path}.{name}")
    elif isinstance(wanted, list) and isinstance(had, list):
        partly = wanted[-1:] == [MORE]
        wanted = wanted[:-1] if partly else wanted
        if len(wanted) > len(had) or not (partly or len(wanted) == len(had)):
            yield f"{path} has {len(had)} entries, not {len(wanted)}"
        for one, other in zip(wanted, had, strict=False):
            yield from _compared(one, other, path)
    elif {type(wanted), type(had)} <= {int, float, type(None)}:
        return
    elif type(wanted) is not type(had) or not _alike(wanted, had, key):
        yield f"{path} is {had!r}, not {wanted!r}"


def _alike(wanted: Any, had: Any, key: str) -> bool:
    """Whether two scalars of one type say the same."""
    if isinstance(wanted, str):
        return key in VOLATILE or _kind(wanted) == _kind(had)
    return bool(wanted == had)
