"""The parent of several workers: who is told what when one ends, and what their end means."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from gir.auth.settings import AuthSettings
from gir.cli.workers import of_worker
from gir.control.config import AdminSection, BeatsSection, RouterConfig
from gir.settings import ConfigError

pytestmark = pytest.mark.slow

PARENT = """
import sys
from gir.cli.workers import supervise
sys.exit(supervise([sys.executable, sys.argv[1]], [{"WHO": who} for who in sys.argv[2:]]))
"""
WORKER = """
import os, pathlib, signal, sys, time
told = []
def note(*_):
    told.append(1)
    if len(told) > 1:
        sys.exit(7)
who = os.environ["WHO"]
if who == "fails":
    sys.exit(2)
if who != "starting":
    signal.signal(signal.SIGTERM, note)
pathlib.Path(__file__).with_name(f"{who}.{os.getpid()}").touch()
while not told:
    time.sleep(0.01)
time.sleep(1.0 if who == "busy" else 0.0)
"""


async def start(folder: Path, *who: str) -> asyncio.subprocess.Process:
    (folder / "worker.py").write_text(WORKER)
    arguments = ("-c", PARENT, str(folder / "worker.py"), *who)
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, start_new_session=True)
    async with asyncio.timeout(10):
        while "fails" not in who and pids(folder).keys() != set(who):
            await asyncio.sleep(0.01)
    return process


def pids(folder: Path) -> dict[str, int]:
    """Workers that have told us so, by what they are."""
    names = (path.name.split(".") for path in folder.iterdir() if path.name != "worker.py")
    return {who: int(pid) for who, pid in names}


async def test_a_worker_that_has_finished_does_not_hurry_the_others(tmp_path: Path) -> None:
    process = await start(tmp_path, "idle", "busy")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0, "the busy worker was told twice, which cuts its streams"


async def test_a_second_signal_is_passed_on(tmp_path: Path) -> None:
    process = await start(tmp_path, "busy")
    process.send_signal(signal.SIGTERM)
    await asyncio.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 7


async def test_a_worker_that_cannot_start_is_the_reason_whatever_became_of_the_others(tmp_path: Path) -> None:
    process = await start(tmp_path, "starting", "fails")
    assert await asyncio.wait_for(process.wait(), 10) == 2


def test_ports_that_meet_when_counted_up_are_refused() -> None:
    sections = {"admin": AdminSection(listen="127.0.0.1:9000"), "beats": BeatsSection(listen="127.0.0.1:9002")}
    config = RouterConfig(auth=AuthSettings(insecure_no_auth=True), **sections)  # type: ignore[arg-type]
    assert of_worker(config, 1, 2).beats.listen == "127.0.0.1:9003"
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9002 is wanted twice: each of 3 workers"):
        of_worker(config, 1, 3)


async def test_a_worker_that_is_killed_takes_the_others_down(tmp_path: Path) -> None:
    process = await start(tmp_path, "idle", "busy")
    os.kill(pids(tmp_path)["busy"], signal.SIGKILL)
    assert await asyncio.wait_for(process.wait(), 10) == 1
