"""An upstream pool in front of a scripted upstream."""

from typing import Self

from gir.clock import SystemClock
from gir.net.pool import Endpoint, PoolLimits, UpstreamPool
from gir.net.render import request_head
from gir.net.upstream import CallDeadlines, UpstreamCall
from tests.support.net import DEADLINES, Script, Upstream, UpstreamConnection

HOST = b"engine"


class Bench:
    """A pool in front of a scripted upstream."""

    def __init__(self, script: Script, limits: PoolLimits | None = None) -> None:
        self.upstream = Upstream(script)
        self._limits = limits or PoolLimits(connect_s=1.0)
        self.pool: UpstreamPool

    async def __aenter__(self) -> Self:
        await self.upstream.start()
        endpoint = Endpoint.parse(f"http://127.0.0.1:{self.upstream.port}")
        self.pool = UpstreamPool(endpoint, self._limits, clock=SystemClock())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.close()
        await self.upstream.close()

    async def call(
        self, body: bytes = b"{}", *, method: str = "POST", resend: bool = True, deadlines: CallDeadlines = DEADLINES
    ) -> UpstreamCall:
        head = request_head(method, b"/v1/x", HOST, [], len(body))
        return await self.pool.send(head, body, deadlines=deadlines, idempotent_resend=resend)

    async def ask(self, body: bytes = b"{}", *, method: str = "POST", resend: bool = True) -> tuple[int, bytes]:
        """Status and whole body of the answer."""
        call = await self.call(body, method=method, resend=resend)
        head = await call.head()
        return head.status, await call.read_all(10_000_000)


def answering(*answers: bytes) -> Script:
    """Give one answer for each request, then close."""

    async def script(connection: UpstreamConnection) -> None:
        for answer in answers:
            await connection.request()
            connection.send(answer)

    return script


async def echo(connection: UpstreamConnection) -> None:
    while True:
        _, body = await connection.request()
        connection.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
