"""Packets that a socket's own kernel throws away: the nearest thing to a cut cable that needs no privilege.

A filter on a socket sees each segment that arrives for it. One that accepts nothing makes the peer's data go without
an acknowledgement: the peer's kernel retransmits into silence, as when a machine lost its power, a link was cut, or a
firewall forgot the connection. On a listening socket it drops attempts to connect. Linux only.
"""

import ctypes
import socket
import struct
from asyncio.trsock import TransportSocket

Socket = socket.socket | TransportSocket
_SO_ATTACH_FILTER = 26
_SO_DETACH_FILTER = 27
_RETURN_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""The one instruction of a classic BPF program that keeps no byte of any packet."""


def deafen(sock: Socket) -> None:
    """Throw away every segment that arrives for `sock` from now on; OSError where the kernel cannot."""
    code = ctypes.create_string_buffer(_RETURN_NOTHING, len(_RETURN_NOTHING))
    program = struct.pack("HP", 1, ctypes.addressof(code))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def hear_again(sock: Socket) -> None:
    """Take the filter away; the peer's next retransmission arrives. Harmless without a filter."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
    except FileNotFoundError:
        return  # there was none
