"""Client of the admin API for the commands: one request, one JSON answer, errors in one line."""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request
from email.message import Message
from typing import Any

DEFAULT_URL = "http://127.0.0.1:9090"
EXIT_REFUSED = 1
EXIT_UNREACHABLE = 3


class AdminError(Exception):
    """The admin API could not be reached, or refused; `exit_code` is what the command should end with."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """`--admin-url`, `--admin-token-file` and `--json`, the same for every command that talks to a router."""
    parser.add_argument(
        "--admin-url",
        default=os.environ.get("GIR_ADMIN_URL", DEFAULT_URL),
        help="admin address of the router (default: $GIR_ADMIN_URL or %(default)s)",
    )
    parser.add_argument("--admin-token-file", metavar="F", help="file with the admin token (default: $GIR_ADMIN_TOKEN)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def call(
    arguments: argparse.Namespace, path: str, *, method: str = "GET", body: Any = None, timeout_s: float = 10.0
) -> Any:
    """One call of the admin API; returns the decoded JSON answer, or text. Raises AdminError."""
    url = arguments.admin_url.rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise AdminError(f"--admin-url is '{arguments.admin_url}'; begin it with http:// or https://", 2)
    request = urllib.request.Request(  # noqa: S310 - scheme checked above
        url, method=method, data=None if body is None else json.dumps(body).encode()
    )
    request.add_header("content-type", "application/json")
    token = _token(arguments)
    if token:
        request.add_header("authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - scheme checked above
            if method == "GET":
                _say_who_answers(arguments, answer.headers)
            return _decode(answer.read(), answer.headers.get("content-type", ""))
    except urllib.error.HTTPError as error:
        raise AdminError(_reason(error), EXIT_REFUSED) from None
    except OSError as error:
        raise AdminError(f"cannot reach {url}: {getattr(error, 'reason', error)}", EXIT_UNREACHABLE) from None


def report(error: AdminError, command: str) -> int:
    """Print the error in one line; return the exit code."""
    sys.stderr.write(f"gir {command}: {error}\n")
    return error.exit_code


def warn_of_reach(answer: Any, command: str) -> None:
    """Say on stderr that a command did not reach every router, when its answer says so."""
    if note := answer.get("applied", {}).get("note"):
        sys.stderr.write(f"gir {command}: {note}\n")


def orders_line(where: Any) -> str:
    """Where operators' orders are kept and who shares them, in one line."""
    place = "in memory" if where["kept"] == "memory" else f"{where['kept']} {where['place']}"
    line = f"orders: {place}, version {where['version']}, known to {where['shared_by']}"
    if where["trouble"]:
        line += f"; AWAY: {where['trouble']}"
    if where["untold"]:
        line += f"; {where['untold']} not told yet"
    return f"{line}; {where['note']}\n" if where["note"] else f"{line}\n"


def show_json(value: Any) -> None:
    """Print `value` as indented JSON."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _say_who_answers(arguments: argparse.Namespace, headers: Message) -> None:
    """On stderr, once in each command: what is shown belongs to one worker of several."""
    name, workers = headers.get("x-gir-router"), headers.get("x-gir-workers")
    if workers and not getattr(arguments, "named", False):
        arguments.named = True
        sys.stderr.write(
            f"answered by {name}, one of {workers} workers: figures of traffic are its own; the others have the admin "
            "ports beside it\n"
        )


def _token(arguments: argparse.Namespace) -> str:
    if not arguments.admin_token_file:
        return os.environ.get("GIR_ADMIN_TOKEN", "")
    try:
        with open(arguments.admin_token_file, encoding="utf-8") as file:
            return file.read().strip()
    except OSError as error:
        raise AdminError(f"--admin-token-file {arguments.admin_token_file}: {error.strerror}", 2) from None


def _decode(data: bytes, content_type: str) -> Any:
    return json.loads(data) if "json" in content_type else data.decode(errors="replace")


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        answer = json.loads(error.read())
        return f"{answer['error']['message'].removeprefix('gir: ')} ({error.code})"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{error.reason} ({error.code})"
