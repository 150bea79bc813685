"""Wall clocks that can be set wrong, each for one process, while it runs.

A small library is compiled and preloaded into the process. It answers every question for the wall clock with an offset
that is read from a page shared with the drill; the monotonic clock, and the kernel, go on as before. So not only our
own code is fooled but every library in the process, as by an operator's `date -s` or a bad time server. The page also
counts the wrong answers given: proof that the fault hit.
"""

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path

_PAGE = struct.Struct("=qq")
"""Offset in nanoseconds; wrong answers given."""
_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct page { _Atomic int64_t offset_ns; _Atomic int64_t told; };
static struct page *page;
static int (*asked)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_page(void) {
    const char *path = getenv("WALL_CLOCK_PAGE");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at != MAP_FAILED) page = at;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (!asked) asked = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = asked(id, now);
    if (failed || !page || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE)) return failed;
    int64_t offset_ns = atomic_load(&page->offset_ns);
    if (offset_ns == 0) return 0;
    int64_t at_ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + offset_ns;
    now->tv_sec = at_ns / 1000000000;
    now->tv_nsec = at_ns % 1000000000;
    atomic_fetch_add(&page->told, 1);
    return 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec at;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &at);
    if (!failed && now) { now->tv_sec = at.tv_sec; now->tv_usec = at.tv_nsec / 1000; }
    return failed;
}

time_t time(time_t *now) {
    struct timespec at;
    if (clock_gettime(CLOCK_REALTIME, &at)) return (time_t)-1;
    if (now) *now = at.tv_sec;
    return at.tv_sec;
}
"""


def build(directory: Path) -> Path:
    """Compile the library into `directory`. RuntimeError when there is no C compiler, or it fails."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise RuntimeError("setting clocks wrong needs a C compiler, and there is none: install cc, gcc or clang")
    source, library = directory / "wallclock.c", directory / "wallclock.so"
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return library


class WallClock:
    """The wall clock of one process, through all its lives. Start it with `env`."""

    def __init__(self, library: Path, page: Path) -> None:
        page.write_bytes(_PAGE.pack(0, 0))
        with page.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PAGE.size)
        preloaded = os.environ.get("LD_PRELOAD", "")
        self.env = {"LD_PRELOAD": f"{library} {preloaded}".strip(), "WALL_CLOCK_PAGE": str(page)}

    def set_wrong_by(self, offset_s: float) -> None:
        """Step the clock; 0 sets it right."""
        struct.pack_into("=q", self._page, 0, round(offset_s * 1e9))

    @property
    def told(self) -> int:
        """Wrong answers given so far."""
        return int(_PAGE.unpack(self._page[: _PAGE.size])[1])
