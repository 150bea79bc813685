"""Listening sockets with an accept loop of our own.

The event loops' servers answer a shortage of descriptors by dropping connections or by closing the listener. Here
accepting pauses and the kernel's backlog holds the callers; it also lets every new connection see the newest
certificate.
"""

import asyncio
import socket
from collections.abc import Callable

ACCEPTS_PER_TURN = 64
"""Upper bound of connections taken before the loop serves anybody else again."""
PAUSE_S = 0.1


async def open_sockets(host: str, port: int, *, reuse_port: bool, backlog: int) -> list[socket.socket]:
    """Bound, listening, non-blocking sockets for every address of `host`; OSError when one cannot be had.

    With port 0 all addresses share the port the first one was given.
    """
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address[0], port or sockets[0].getsockname()[1], *address[2:]))
            sock.listen(backlog)
    except OSError as error:
        for sock in sockets:
            sock.close()
        problem = f"cannot listen on {host}:{port}: {error.strerror}; free the port or choose another"
        raise OSError(error.errno, problem) from error
    return sockets


class Listener:
    """Accepts on one socket while `room()` says so, and hands each connection to `accepted(socket, address)`."""

    __slots__ = ("_accepted", "_loop", "_paused", "_room", "socket")

    def __init__(
        self, sock: socket.socket, accepted: Callable[[socket.socket, str], None], room: Callable[[], bool]
    ) -> None:
        self.socket = sock
        self._accepted = accepted
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._paused = True
        self.resume()

    def resume(self) -> None:
        """Accept again. Safe to call at any time."""
        if self._paused and self.socket.fileno() >= 0:
            self._paused = False
            self._loop.add_reader(self.socket.fileno(), self._ready)

    def close(self) -> None:
        """Take what has already been promised by the kernel, then stop listening."""
        if self.socket.fileno() >= 0:
            self._ready()
            self._pause()
            self.socket.close()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._loop.remove_reader(self.socket.fileno())

    def _ready(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if not self._room():
                self._pause()
                return
            try:
                sock, address = self.socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                # Out of descriptors or memory: those who wait stay in the backlog until somebody leaves.
                self._pause()
                self._loop.call_later(PAUSE_S, self.resume)
                return
            sock.setblocking(False)
            self._accepted(sock, str(address[0]))
