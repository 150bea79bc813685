"""How a connection whose other end has vanished is noticed, though nobody says so.

A machine that lost its power, a cut link or a middlebox that forgot a connection sends no FIN. The kernel would
retransmit into the silence for a quarter of an hour; told to, it gives up after seconds. A process that is merely
frozen still acknowledges, by its kernel: noticing that is the business of deadlines and probes.
"""

import math
import socket
from typing import Protocol

_KEEPALIVE_S = 1
"""Between two questions to a silent peer."""
_QUESTIONS = 15
"""So many never come: the time without an acknowledgement ends it before."""


class HasOptions(Protocol):
    """A socket, as far as event loops show one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """As of `socket.socket`."""


def end_when_unheard(sock: HasOptions, dead_s: float) -> None:
    """Have the kernel end a connection whose peer has acknowledged nothing for `dead_s`, within about a second more.

    That ends it with TimeoutError (ETIMEDOUT). What is sent counts from when it was sent; while there is nothing to
    send, the kernel asks from half of `dead_s` on. A system that cannot do it keeps its own, longer patience.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, math.ceil(dead_s / 2))),
        ("TCP_KEEPINTVL", _KEEPALIVE_S),
        ("TCP_KEEPCNT", _QUESTIONS),
    ):
        _set(sock, name, value)
    be_patient(sock, dead_s)


def be_patient(sock: HasOptions, dead_s: float) -> None:
    """Change how long a peer may acknowledge nothing, or leave unread what it was sent: to the kernel these are one."""
    _set(sock, "TCP_USER_TIMEOUT", math.ceil(dead_s * 1e3))


def _set(sock: HasOptions, name: str, value: int) -> None:
    option = getattr(socket, name, None)
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
