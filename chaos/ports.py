"""Ports for processes that must be told one: leased so that nobody else can be given the same.

A lease is a file lock, held while the fleet lives, on a port outside the range from which the kernel picks ports for
outgoing connections. So neither another fleet nor a client's socket can take it between choosing and binding.
"""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

FIRST = 20_000
COUNT = 10_000


class PortLeases:
    """Leases of one fleet; `close` gives them all back."""

    def __init__(self, directory: Path | None = None, chance: random.Random | None = None) -> None:
        self._directory = directory or Path(tempfile.gettempdir()) / f"gir-ports-{os.getuid()}"
        self._directory.mkdir(parents=True, exist_ok=True)
        self._chance = chance or random.Random(os.getpid())
        self._locks: list[IO[bytes]] = []

    def take(self) -> int:
        """A port on 127.0.0.1 that is free now and leased to nobody. RuntimeError when there is none."""
        for port in self._candidates():
            lock = (self._directory / str(port)).open("wb")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.close()
                continue
            if _is_free(port):
                self._locks.append(lock)
                return port
            lock.close()
        raise RuntimeError(f"no free port from {FIRST} to {FIRST + COUNT - 1}: is another fleet left running?")

    def close(self) -> None:
        """Give every lease back."""
        for lock in self._locks:
            lock.close()
        self._locks.clear()

    def _candidates(self) -> Iterator[int]:
        start = self._chance.randrange(COUNT)
        return (FIRST + (start + step) % COUNT for step in range(COUNT))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
