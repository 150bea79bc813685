"""Large bodies in turns: how much of them one turn of the loop reads, and in whose order."""

import asyncio

from gir.net.turns import LARGE_BYTES, READS_PER_TURN, TURN_BYTES, Turns
from tests.support.memory import MemoryTransport


class Upload(MemoryTransport):
    """Always has a whole read's worth to send, unless it is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused and not self.closing
        self.paused = False


def read(turns: Turns, uploads: list[Upload]) -> list[int]:
    """One look of the loop at its sockets: the places of those that were read."""
    ready = [place for place, upload in enumerate(uploads) if not upload.paused]
    for place in ready:
        turns.took(uploads[place], LARGE_BYTES)
    return ready


async def test_uploads_are_read_a_few_in_each_turn_and_all_around() -> None:
    turns, uploads = Turns(), [Upload() for _ in range(10)]
    assert read(turns, uploads) == list(range(10)), "the first read of each cannot be prevented"
    seen = []
    for _ in range(20):
        await asyncio.sleep(0)
        ready = read(turns, uploads)
        assert len(ready) <= READS_PER_TURN + TURN_BYTES // LARGE_BYTES
        seen += ready
    assert min(map(seen.count, range(10))) >= 3, "somebody was forgotten"


async def test_a_single_upload_is_read_in_every_turn() -> None:
    turns, upload = Turns(), Upload()
    for _ in range(20):
        assert not upload.paused
        for _ in range(TURN_BYTES // LARGE_BYTES):
            turns.took(upload, LARGE_BYTES)
        await asyncio.sleep(0)


async def test_uploads_that_together_send_little_are_never_paused() -> None:
    turns, uploads = Turns(), [Upload() for _ in range(5)]
    for _ in range(20):
        for upload in uploads:
            turns.took(upload, TURN_BYTES // 6)
        assert not any(upload.paused for upload in uploads)
        await asyncio.sleep(0)


async def test_who_waits_is_known_and_whoever_leaves_is_read_on() -> None:
    turns, uploads = Turns(), [Upload() for _ in range(4)]
    read(turns, uploads)
    last = uploads[-1]
    assert turns.waits(last)
    turns.leave(last)
    assert not turns.waits(last) and not last.paused
    turns.leave(last)
    gone = uploads[-2]
    gone.close()
    turns.leave(gone)
    assert not turns.waits(gone)


async def test_an_upload_that_ended_while_it_waited_is_left_alone() -> None:
    turns, uploads = Turns(), [Upload() for _ in range(6)]
    read(turns, uploads)
    for upload in uploads:
        upload.abort()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not any(turns.waits(upload) for upload in uploads)
