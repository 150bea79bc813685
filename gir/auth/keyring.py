"""API keys: from hash to principal in one look-up, and the file `gir keys` keeps."""

import hmac
import os
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from gir.auth.credentials import unauthenticated
from gir.auth.principal import grant_of_key, principal_of
from gir.auth.settings import ApiKey
from gir.model.ids import TenantId
from gir.model.policy import TenantPolicy
from gir.model.policy.base import Section
from gir.model.request import Principal

FILE_MODE = 0o600


class KeysFile(Section, frozen=True, kw_only=True):
    """Content of the keys file: JSON, hashes only."""

    keys: tuple[ApiKey, ...] = ()


class _Entry(msgspec.Struct, frozen=True):
    digest: bytes
    principal: Principal
    ends_s: float


class KeyRing:
    """Every valid key, by digest. Immutable once built; a reload builds another."""

    __slots__ = ("_entries",)

    def __init__(self, keys: Iterable[ApiKey], tenants: Mapping[TenantId, TenantPolicy]) -> None:
        """Raises ValueError when two keys share an id or a hash: one of them would be silently ignored."""
        self._entries: dict[bytes, _Entry] = {}
        ids: set[str] = set()
        for key in keys:
            digest = bytes.fromhex(key.key_sha256)
            if key.id in ids or digest in self._entries:
                raise ValueError(f"api key id {key.id!r} or its hash is listed twice; remove one of the two")
            ids.add(key.id)
            ends_s = min(_stamp_s(key.expires_at), _stamp_s(key.revoked_at))
            principal = principal_of(grant_of_key(key), tenants.get(key.tenant))
            self._entries[digest] = _Entry(digest, principal, ends_s)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, digest: bytes, now_wall_s: float) -> Principal | None:
        """Principal of the key with this `digest`; None when there is none.

        Raises RequestError UNAUTHENTICATED when the key has expired or been revoked.
        """
        entry = self._entries.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest):
            return None
        if now_wall_s >= entry.ends_s:
            raise unauthenticated(f"API key {entry.principal.key_id} has expired or been revoked; ask for a new one")
        return entry.principal


def _stamp_s(moment: datetime | None) -> float:
    return float("inf") if moment is None else moment.timestamp()


def read_keys(path: Path) -> KeysFile:
    """Parse the keys file; a missing file holds no keys. Raises ValueError naming the file and the fault."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeysFile)
    except FileNotFoundError:
        return KeysFile()
    except msgspec.DecodeError as error:
        raise ValueError(f"{path}: {error}; restore it from a backup or repair it by hand") from error


def write_keys(path: Path, content: KeysFile) -> None:
    """Replace the keys file atomically: readers see the old or the new one, never half. Mode 0600."""
    encoded = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(encoded)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, FILE_MODE)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
