"""A fleet's directory, which holds credentials and must not outlive it, not even when its runner is killed.

The runner holds a lock on a file inside for as long as it lives; the kernel lets go of it however the runner ends. So
whoever starts the next fleet can tell the dead from the living, whatever became of process numbers meanwhile.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import IO

from gir.clock import SystemClock

PREFIX = "gir-fleet-"
LOCK = "alive.lock"
YOUNG_S = 3_600.0
"""A directory without its lock is left alone so long: its owner may be about to make it, or of an older make."""


class Scratch:
    """One directory, only this user's."""

    def __init__(self, parent: Path | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = _take_lock(self.directory)

    def close(self) -> None:
        """Remove it and everything in it. Safe to call twice."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self._lock.close()


def sweep(parent: Path | None = None) -> list[Path]:
    """Remove what killed runners of this user left behind; returns what was removed."""
    now_s = SystemClock().wall_s()
    removed = []
    for directory in sorted((parent or Path(tempfile.gettempdir())).glob(f"{PREFIX}*")):
        if _is_abandoned(directory, now_s):
            shutil.rmtree(directory, ignore_errors=True)
            removed.append(directory)
    return removed


def _take_lock(directory: Path) -> IO[bytes]:
    """Locked before it gets its name, so that nobody ever finds it there and unlocked while we live."""
    unnamed = directory / f"{LOCK}.new"
    lock = unnamed.open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(directory / LOCK)
    return lock


def _is_abandoned(directory: Path, now_s: float) -> bool:
    try:
        status = directory.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        with (directory / LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return directory.exists() and now_s - directory.lstat().st_mtime > YOUNG_S
    except OSError:
        return False
    return True
