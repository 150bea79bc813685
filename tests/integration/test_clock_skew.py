"""Replicas whose wall clocks are ten minutes apart (F15) share their limits all the same: the store's clock counts."""

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.faults.wallclock import WallClock, build
from tests.support.redis_server import redis_server

REPLICA = """
import asyncio, sys, time
from gir.admit.ports import Rate, Take
from gir.stores.redis import RedisStore

async def main():
    store = RedisStore(sys.argv[1])
    await store.connect()
    taken = (await store.exchange([Take("team", Rate(10, 3_600.0, 10), 1, 4)], [])).taken[0]
    print(time.time(), taken.units, taken.stamp)
    await store.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_replicas_ten_minutes_apart_share_one_limit(tmp_path: Path) -> None:
    library = build(tmp_path)
    answers = []
    with redis_server() as server:
        for number, offset_s in enumerate((0.0, 600.0, -600.0)):
            clock = WallClock(library, tmp_path / f"page-{number}")
            clock.set_wrong_by(offset_s)
            done = subprocess.run(
                [sys.executable, "-c", REPLICA, server.url], env=clock.env, capture_output=True, text=True, check=True
            )
            assert bool(clock.told) == bool(offset_s), "the fault did not hit"
            answers.append([float(word) for word in done.stdout.split()])
    walls, units, stamps = zip(*answers, strict=True)
    assert walls[1] - walls[2] == pytest.approx(1_200.0, abs=60.0)
    assert units == (4.0, 4.0, 2.0), "ten units in all, whoever asks and whatever it thinks the time is"
    assert max(stamps) - min(stamps) <= 1
