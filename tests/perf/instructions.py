"""Instructions the router executes for one request, counted by valgrind.

`python -m tests.perf.instructions`

On a shared machine the CPU time of one and the same router differs by a tenth from run to run, more than any single
change is worth; this figure repeats to half a percent, however busy the machine. It is blind to cache misses and to the
kernel: use it to tell whether a change saves work, and `tests.perf.overhead` to tell what the router costs.

Two runs of `tests.perf.inside` differ only in how many requests they serve, so that start-up cancels out. Background
tasks are stopped, for their share would depend on how long the run takes. Takes a minute on a quiet machine.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys

import uvloop

from tests.perf import inside

FEW, MANY = 100, 600
"""Requests of the two runs. The first hundred warm the interpreter's specialisation."""
_COUNTED = re.compile(r"I\s+refs:\s+([\d,]+)")


async def _serve(count: int) -> None:
    router = await inside.start()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)
    await inside.request_us(router, count=count, prompt_bytes=400)
    os._exit(0)  # as `inside`: the stand-ins cannot be closed in good order


def count(requests: int) -> int:
    """Instructions of a whole run that serves `requests`."""
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, "-m", "tests.perf.instructions", str(requests)]
    # Without it every run would have other collisions in its dictionaries.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    counted = _COUNTED.search(ended.stderr)
    if counted is None:
        raise SystemExit(f"valgrind counted nothing; its last words: {ended.stderr[-500:]}")
    return int(counted[1].replace(",", ""))


def main() -> None:
    if len(sys.argv) > 1:
        uvloop.run(_serve(int(sys.argv[1])))
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed: `apt-get install valgrind`, or your system's way")
    served = [requests // inside.CONNECTIONS * inside.CONNECTIONS for requests in (FEW, MANY)]
    few, many = (count(requests) for requests in served)
    sys.stdout.write(f"{(many - few) // (served[1] - served[0]):,} instructions/request\n")


if __name__ == "__main__":
    main()
