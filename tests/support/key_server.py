"""An issuer's keys over real HTTP, and what may become of the server."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.support.issuing import document


class KeyServer:
    """An HTTP server with one document, and what it should answer next."""

    def __init__(self) -> None:
        self.body = document("one")
        self.status = 200
        self.delay_s = 0.0
        self.headers: dict[str, str] = {}
        self.asked: list[str | None] = []
        """`If-None-Match` of every question."""
        self.port = 0
        self._site: web.TCPSite | None = None
        app = web.Application()
        app.router.add_get("/keys", self.answer)
        app.router.add_get("/elsewhere", self.answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, keepalive_timeout=0.0)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/keys"

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("If-None-Match"))
        assert "Authorization" not in request.headers
        await asyncio.sleep(self.delay_s)
        mark = f'"{hashlib.sha256(self.body).hexdigest()}"'
        if self.status == 200 and request.headers.get("If-None-Match") == mark:
            return web.Response(status=304)
        return web.Response(status=self.status, body=self.body, headers={"ETag": mark, **self.headers})

    async def up(self) -> None:
        """Listen, where it did before."""
        if not self.port:
            await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def down(self) -> None:
        """Listen no more: connections are refused."""
        assert self._site is not None
        await self._site.stop()

    async def close(self) -> None:
        """End."""
        await self._runner.cleanup()


@asynccontextmanager
async def key_server() -> AsyncIterator[KeyServer]:
    """One that runs for a block."""
    made = KeyServer()
    await made.up()
    try:
        yield made
    finally:
        await made.close()
