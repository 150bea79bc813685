"""Operators' orders in a file of the state directory: for the workers of one host, and over restarts.

The file is replaced in one step, so a reader sees one version or the next and needs no lock. Writers hold a lock beside
it while they look at the version they are about to replace. It is never waited for long: whoever holds it may be
stopped.
"""

import asyncio
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from gir.admit.ports import StoreError
from gir.control.orders import Kept
from gir.model.orders import BYTES_MAX

FILE = "orders.json"
COPY = "orders-copy.json"
LOCK_S = 0.5
_LOCK_STEP_S = 0.005
_FRAME_BYTES = 1_024


class _Page(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content: JSON that can be read, and mended, by hand."""

    version: int
    orders: msgspec.Raw = msgspec.Raw(b"{}")


class FileOrders:
    """Implements `gir.control.orders.OrderStore` (and `OrderCopy`) on one file, made when it is first needed."""

    kind = "file"

    def __init__(self, directory: Path, name: str = FILE) -> None:
        self._directory = directory
        self._path = directory / name
        self.place = str(self._path)

    async def read(self) -> Kept:
        return await asyncio.to_thread(self._guarded_read)

    async def replace(self, over: int, kept: Kept) -> bool:
        return await asyncio.to_thread(self._guarded_replace, over, kept)

    async def keep(self, kept: Kept) -> None:
        """Replace whatever is there. Raises StoreError."""
        await asyncio.to_thread(self._guarded_replace, None, kept)

    async def close(self) -> None:
        """Nothing is held."""

    def _guarded_read(self) -> Kept:
        try:
            return self._read()
        except OSError as error:
            raise StoreError(f"{self.place}: {error.strerror or error}") from None

    def _guarded_replace(self, over: int | None, kept: Kept) -> bool:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if over is not None and self._read().version != over:
                    return False
                self._write(kept)
        except OSError as error:
            raise StoreError(f"{self.place}: {error.strerror or error}") from None
        return True

    def _read(self) -> Kept:
        try:
            with open(self._path, "rb", opener=_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise StoreError(f"{self.place} is no regular file; remove it")
                text = file.read(BYTES_MAX + _FRAME_BYTES)
        except FileNotFoundError:
            return Kept()
        try:
            page = msgspec.json.decode(text, type=_Page)
        except (msgspec.DecodeError, RecursionError) as error:
            raise StoreError(f"{self.place} is damaged ({error}); mend it, or remove it and restart") from None
        return Kept(page.version, bytes(page.orders))

    def _write(self, kept: Kept) -> None:
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        page = _Page(kept.version, msgspec.Raw(kept.text or b"{}"))
        with open(scratch, "wb", opener=_private) as file:
            file.write(msgspec.json.encode(page))
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = _private(str(self._path.with_suffix(".lock")), os.O_RDWR | os.O_CREAT)
        try:
            for _ in range(int(LOCK_S / _LOCK_STEP_S)):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_STEP_S)
            else:
                raise StoreError(f"{self.place}: another process has held its lock for {LOCK_S:g} s")
            yield
        finally:
            os.close(lock)


def _at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe would be waited for until somebody writes


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
