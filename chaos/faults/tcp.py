"""A TCP proxy on loopback with nine ways to be bad, each for one direction or both, changeable while bytes flow.

`latency` (with jitter), `bandwidth`, `slicer` delay or reshape data; `limit_data`, `reset_peer`, `slow_close` decide
how a connection ends; `timeout` lets nothing through (0: until it is removed) while kernels still acknowledge it;
`down` refuses connections. Names and meaning of these follow Toxiproxy's toxics. `drop` goes deeper: the segments
themselves are lost, unacknowledged.
"""

import asyncio
import ipaddress
import random
import socket
import struct
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from chaos.faults.packets import Socket, deafen, hear_again
from gir.clock import Clock

Kind = Literal["latency", "down", "bandwidth", "slow_close", "timeout", "reset_peer", "slicer", "limit_data", "drop"]
Way = Literal["both", "up", "down"]
READ_BYTES = 65_536
_Arrival = tuple[float, bytes | OSError]
QUEUE_CHUNKS = 64

NonNegative = Annotated[float, msgspec.Meta(ge=0.0)]


class Toxic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One toxic. `way` `up` is from client to server, `down` back.

    latency: `delay_s` +- `jitter_s`. bandwidth: `bytes_per_s`. slicer: pieces of `slice_bytes`, `delay_s` apart.
    slow_close: FIN comes `delay_s` late. timeout: nothing passes, and after `delay_s` (0: never) the connection is
    closed. reset_peer: RST `delay_s` after the first data. limit_data: the connection closes after `limit_bytes`.
    drop: segments are lost on connections that are open now, and, unless `established_only`, on those to come.
    """

    name: str
    kind: Kind
    way: Way = "both"
    delay_s: NonNegative = 0.0
    jitter_s: NonNegative = 0.0
    bytes_per_s: Annotated[float, msgspec.Meta(gt=0.0)] = 1e9
    slice_bytes: Annotated[int, msgspec.Meta(ge=1)] = 1
    limit_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    established_only: bool = False


def check_loopback(host: str) -> None:
    """Raise PermissionError unless `host` is a loopback address: faults stay on this machine."""
    if not ipaddress.ip_address(host).is_loopback:
        raise PermissionError(f"host is {host}: faults are injected on loopback only; use 127.0.0.1")


class _Link:
    """One client connection and its twin to the server."""

    __slots__ = ("client", "server")

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server

    def close(self) -> None:
        self.client.close()
        self.server.close()

    def sockets(self, way: Way) -> list[Socket]:
        """Those on which data that goes this way arrives."""
        ends = {"up": (self.client,), "down": (self.server,), "both": (self.client, self.server)}[way]
        return [sock for end in ends if (sock := end.get_extra_info("socket")) is not None and sock.fileno() >= 0]

    def reset(self) -> None:
        for writer in (self.client, self.server):
            sock = writer.get_extra_info("socket")
            if sock is not None and not writer.transport.is_closing():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class TcpProxy:
    """Forwards one loopback port to another. `hits` counts, by toxic, the chunks or connections it touched."""

    def __init__(self, upstream: tuple[str, int], clock: Clock, *, seed: int = 0) -> None:
        check_loopback(upstream[0])
        self.upstream = upstream
        self._clock = clock
        self._chance = random.Random(seed)
        self._toxics: dict[str, Toxic] = {}
        self._changed = asyncio.Event()
        self._quiet = asyncio.Event()
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self._address = ("127.0.0.1", 0)
        self.hits: dict[str, int] = {}

    @property
    def port(self) -> int:
        """Port clients connect to."""
        return self._address[1]

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._links)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; raises OSError when the port is taken."""
        check_loopback(host)
        self._server = await asyncio.start_server(self._accept, host, port)
        self._address = (host, self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop every connection."""
        self._toxics.clear()
        self._changed_now()
        await self._stop_listening()
        if self._links:
            await self._quiet.wait()

    async def add(self, toxic: Toxic) -> None:
        """Install a toxic; one of the same name is replaced. It works on open connections at once."""
        self._toxics[toxic.name] = toxic
        self._changed_now()
        if toxic.kind == "down":
            self._hit(toxic)
            await self._stop_listening()
        elif toxic.kind == "drop":
            self._drop(toxic)

    async def remove(self, name: str) -> None:
        """Take a toxic away; data that a `timeout` held back flows on."""
        toxic = self._toxics.pop(name, None)
        self._changed_now()
        if toxic is not None and toxic.kind == "down" and self._server is None:
            await self.start(*self._address)
        elif toxic is not None and toxic.kind == "drop":
            for sock in [*self._listening(), *(sock for link in self._links for sock in link.sockets("both"))]:
                hear_again(sock)

    def _drop(self, toxic: Toxic) -> None:
        for link in self._links:
            self._hit(toxic)
            for sock in link.sockets(toxic.way):
                deafen(sock)
        if not toxic.established_only and toxic.way != "down":
            for sock in self._listening():
                deafen(sock)

    def _listening(self) -> list[Socket]:
        return list(self._server.sockets) if self._server is not None else []

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self._links):
            link.reset()
        await asyncio.sleep(0)

    def _changed_now(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _hit(self, toxic: Toxic) -> None:
        self.hits[toxic.name] = self.hits.get(toxic.name, 0) + 1

    def _active(self, kind: Kind, way: Way) -> Iterator[Toxic]:
        """A copy: the set may change while one of them is at work."""
        return iter([toxic for toxic in self._toxics.values() if toxic.kind == kind and toxic.way in ("both", way)])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, server_writer)
        self._links.add(link)
        self._quiet.clear()
        for toxic in [toxic for toxic in self._toxics.values() if toxic.kind == "drop" and not toxic.established_only]:
            self._hit(toxic)
            for sock in link.sockets(toxic.way):
                deafen(sock)
        try:
            async with asyncio.TaskGroup() as group:
                for source, sink, way in ((reader, server_writer, "up"), (server_reader, writer, "down")):
                    queue: asyncio.Queue[_Arrival] = asyncio.Queue(QUEUE_CHUNKS)
                    _ = group.create_task(self._read(source, queue))
                    _ = group.create_task(self._write(queue, sink, way, link))  # type: ignore[arg-type]
        except* OSError:
            link.reset()
        finally:
            link.close()
            self._links.discard(link)
            if not self._links:
                self._quiet.set()

    async def _read(self, source: asyncio.StreamReader, queue: "asyncio.Queue[_Arrival]") -> None:
        """Read ahead, bounded: delays then add to each chunk's own time of arrival and not to one another."""
        try:
            while data := await source.read(READ_BYTES):
                await queue.put((self._clock.monotonic_s(), data))
        except OSError as error:
            await queue.put((self._clock.monotonic_s(), error))
        else:
            await queue.put((self._clock.monotonic_s(), b""))

    async def _write(self, queue: "asyncio.Queue[_Arrival]", sink: asyncio.StreamWriter, way: Way, link: _Link) -> None:
        sent = 0
        while True:
            arrived_s, data = await queue.get()
            await self._held(way, link)
            if isinstance(data, OSError):
                raise data
            if not data:
                await self._close_slowly(way)
                if not sink.is_closing():
                    sink.write_eof()
                return
            sent = await self._pass(sink, arrived_s, data, way, link, sent)

    async def _held(self, way: Way, link: _Link) -> None:
        """Wait while a `timeout` toxic lets nothing through."""
        while (toxic := next(self._active("timeout", way), None)) is not None:
            self._hit(toxic)
            changed = self._changed
            try:
                async with asyncio.timeout(toxic.delay_s or None):
                    await changed.wait()
            except TimeoutError:
                link.close()
                raise ConnectionAbortedError("closed by a timeout toxic") from None

    async def _close_slowly(self, way: Way) -> None:
        for toxic in self._active("slow_close", way):
            self._hit(toxic)
            await self._clock.sleep_s(toxic.delay_s)

    async def _pass(
        self, writer: asyncio.StreamWriter, arrived_s: float, data: bytes, way: Way, link: _Link, sent: int
    ) -> int:
        """Send one chunk through every toxic; returns how many bytes this direction has carried."""
        for toxic in self._active("latency", way):
            self._hit(toxic)
            delay_s = toxic.delay_s + self._chance.uniform(-toxic.jitter_s, toxic.jitter_s)
            await self._clock.sleep_s(arrived_s + delay_s - self._clock.monotonic_s())
        for toxic in self._active("reset_peer", way):
            self._hit(toxic)
            await self._clock.sleep_s(toxic.delay_s)
            link.reset()
            raise ConnectionResetError("reset by a toxic")
        for toxic in self._active("limit_data", way):
            if sent + len(data) > toxic.limit_bytes:
                self._hit(toxic)
                writer.write(data[: max(0, toxic.limit_bytes - sent)])
                await writer.drain()
                link.close()
                raise ConnectionAbortedError("closed by a limit_data toxic")
        for toxic in self._active("bandwidth", way):
            self._hit(toxic)
            await self._clock.sleep_s(len(data) / toxic.bytes_per_s)
        slicer = next(self._active("slicer", way), None)
        if slicer is None:
            writer.write(data)
            await writer.drain()
        else:
            self._hit(slicer)
            for start in range(0, len(data), slicer.slice_bytes):
                writer.write(data[start : start + slicer.slice_bytes])
                await writer.drain()
                await self._clock.sleep_s(slicer.delay_s)
        return sent + len(data)
