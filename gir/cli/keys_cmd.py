"""`gir keys create|list|revoke`: API keys in a file that routers watch. The key is shown once and kept nowhere."""

import argparse
import fcntl
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import msgspec

from gir.auth.credentials import new_secret
from gir.auth.keyring import KeyRing, KeysFile, read_keys, write_keys
from gir.auth.settings import ApiKey, CriticalityName
from gir.cli.client import show_json
from gir.clock import Clock, SystemClock
from gir.model.ids import ModelId, TenantId

_EPILOG = """examples:
  gir keys create --file keys.json --id ci --tenant acme --models llama --expires-in 90d
  gir keys list --file keys.json
  gir keys revoke --file keys.json --id ci

Point the router at the file with auth.api_keys_file; changes take effect within two seconds, without a restart.
"""
_UNIT_S = {"h": 3_600, "d": 86_400, "w": 604_800}
_CLASSES = get_args(CriticalityName)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """An action, the file, and what a new key may do."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("action", choices=("create", "list", "revoke"))
    default = os.environ.get("GIR_KEYS_FILE")
    parser.add_argument("--file", default=default, help="keys file (default: $GIR_KEYS_FILE)")
    parser.add_argument("--id", help="name of the key, as it appears in logs and ledgers")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")
    new = parser.add_argument_group("a new key")
    new.add_argument("--tenant", help="tenant it belongs to")
    new.add_argument("--models", nargs="+", metavar="M", help="models it may ask for (default: any its tenant may)")
    new.add_argument("--regions", nargs="+", metavar="R", help="Regions its requests may go to")
    new.add_argument("--criticality-max", choices=_CLASSES, default="critical", help="default: %(default)s")
    new.add_argument("--criticality-default", choices=_CLASSES, help="class of a request that claims none")
    new.add_argument("--trusted", action="store_true", help="may set x-gir-* control headers")
    new.add_argument("--expires-in", metavar="90d", help="life span: a number and h, d or w (default: for ever)")


def run(arguments: argparse.Namespace, clock: Clock | None = None) -> int:
    """Do it; exit code 1 when the answer is no, 2 for wrong usage."""
    now = datetime.fromtimestamp((clock or SystemClock()).wall_s(), UTC)
    try:
        if not arguments.file:
            raise _UsageError("name the keys file with --file or $GIR_KEYS_FILE")
        path = Path(arguments.file)
        if arguments.action == "list":
            return _list(path, now, as_json=arguments.json)
        if not arguments.id:
            raise _UsageError(f"{arguments.action} needs --id")
        return _create(path, arguments, now) if arguments.action == "create" else _revoke(path, arguments.id, now)
    except _UsageError as error:
        sys.stderr.write(f"gir keys: {error}\n")
        return 2
    except (ValueError, OSError) as error:
        sys.stderr.write(f"gir keys: {error}\n")
        return 1


class _UsageError(Exception):
    """The command line does not say enough."""


def _create(path: Path, arguments: argparse.Namespace, now: datetime) -> int:
    if not arguments.tenant:
        raise _UsageError("create needs --tenant")
    secret = new_secret()
    key = ApiKey(
        id=arguments.id,
        key_sha256=hashlib.sha256(secret.encode()).hexdigest(),
        tenant=TenantId(arguments.tenant),
        models=None if arguments.models is None else tuple(map(ModelId, arguments.models)),
        regions=None if arguments.regions is None else tuple(arguments.regions),
        criticality_max=arguments.criticality_max,
        criticality_default=arguments.criticality_default,
        trusted=arguments.trusted,
        created_at=now,
        expires_at=None if arguments.expires_in is None else now + _span(arguments.expires_in),
    )
    with _locked(path):
        held = read_keys(path)
        if any(other.id == key.id for other in held.keys):
            raise ValueError(f"{path} has a key {key.id!r} already; revoke it, or choose another id")
        content = KeysFile(keys=(*held.keys, key))
        KeyRing(content.keys, {})
        write_keys(path, content)
    if arguments.json:
        show_json({"id": key.id, "tenant": key.tenant, "key": secret})
    else:
        sys.stdout.write(f"{secret}\n")
        sys.stderr.write(f"key {key.id} of tenant {key.tenant}: shown this once, kept only as a hash in {path}\n")
    return 0


def _list(path: Path, now: datetime, *, as_json: bool) -> int:
    rows = [
        {
            "id": key.id,
            "tenant": key.tenant,
            "state": _state(key, now),
            "models": key.models,
            "criticality_max": key.criticality_max,
            "created_at": _text(key.created_at),
            "expires_at": _text(key.expires_at),
            "revoked_at": _text(key.revoked_at),
        }
        for key in read_keys(path).keys
    ]
    if as_json:
        show_json({"keys": rows})
        return 0
    for row in rows:
        models = ", ".join(row["models"] or ()) or "any model"
        sys.stdout.write(f"{row['id']:<24} {row['tenant']:<20} {row['state']:<8} {models}\n")
    if not rows:
        sys.stdout.write(f"no keys in {path}; gir keys create makes one\n")
    return 0


def _revoke(path: Path, key_id: str, now: datetime) -> int:
    with _locked(path):
        held = read_keys(path)
        if not any(key.id == key_id for key in held.keys):
            raise ValueError(f"no key {key_id!r} in {path}; gir keys list shows them")
        revoked = [
            msgspec.structs.replace(key, revoked_at=key.revoked_at or now) if key.id == key_id else key
            for key in held.keys
        ]
        write_keys(path, KeysFile(keys=tuple(revoked)))
    sys.stdout.write(f"{key_id} is revoked; routers that watch {path} refuse it within two seconds\n")
    return 0


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Two operators at once must not undo each other: hold the directory, as the file itself is replaced."""
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _span(text: str) -> timedelta:
    parts = re.fullmatch(r"([1-9]\d{0,5})([hdw])", text)
    if parts is None:
        raise _UsageError(f"--expires-in is {text!r}; give a number and h, d or w, such as 90d")
    return timedelta(seconds=int(parts[1]) * _UNIT_S[parts[2]])


def _state(key: ApiKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "expired" if key.expires_at is not None and key.expires_at <= now else "valid"


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
