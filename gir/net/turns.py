"""Large bodies are read in turns, so that many at once hold nobody else up.

A loop reads from every socket that has something before it does anything else: from a thousand uploads a quarter of a
gigabyte, turn after turn, while everybody else's next token waits. So each turn of the loop reads only so much of large
bodies; whoever comes later, or has just been read while others wait, is paused until it is their turn again. Bodies of
everyday size never come here, and a single large one hardly notices.
"""

import asyncio
import itertools

LARGE_BYTES = 256 * 1024
"""Bodies up to this size are read at once: a read of the loop is as large."""
TURN_BYTES = 512 * 1024
"""Read of large bodies in one turn, give or take one read."""
READS_PER_TURN = 2
"""Paused uploads that may be read in the next turn. What takes longest is not the reading but what a complete body
sets off, and as many may be complete with it."""


class Turns:
    """Whose body is read next: in order of arrival, all around. One per server."""

    __slots__ = ("_scheduled", "_spent", "_waiting")

    def __init__(self) -> None:
        self._scheduled = False
        self._spent = 0
        """Bytes read in this turn."""
        self._waiting: dict[asyncio.Transport, None] = {}

    def __repr__(self) -> str:
        return f"<Turns {len(self._waiting)} waiting>"

    def waits(self, transport: asyncio.Transport) -> bool:
        """Whether it is paused until its turn comes: what it sends is slow through no fault of its own."""
        return transport in self._waiting

    def took(self, transport: asyncio.Transport, size: int) -> None:
        """Of a large body `size` bytes were read, and more will come: pauses `transport` if others should go first."""
        self._spent += size
        self._schedule()
        if (self._waiting or self._spent >= TURN_BYTES) and not transport.is_closing():
            transport.pause_reading()
            self._waiting[transport] = None

    def leave(self, transport: asyncio.Transport) -> None:
        """No body is read from it any more; safe to call for anybody."""
        if self._waiting and transport in self._waiting:
            del self._waiting[transport]
            _resume(transport)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """A turn of the loop begins, and then it looks at its sockets."""
        self._scheduled = False
        self._spent = 0
        for transport in list(itertools.islice(self._waiting, READS_PER_TURN)):
            del self._waiting[transport]
            _resume(transport)
        if self._waiting:
            self._schedule()


def _resume(transport: asyncio.Transport) -> None:
    if not transport.is_closing():
        transport.resume_reading()
