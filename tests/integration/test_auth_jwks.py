"""Keys over real HTTP: what an issuer may answer, and what must not be believed (F26)."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from gir.auth.authenticator import Authenticator
from gir.auth.jwks_fetch import DOCUMENT_BYTES_MAX, HttpKeyFetcher, KeyFetchError
from gir.clock import SystemClock
from gir.model.errors import RequestError
from gir.tasks import TaskSet
from tests.support.issuing import document, settings, token


class Issuer:
    """An HTTP server with one route, and what it should answer next."""

    def __init__(self) -> None:
        self.body = document("one")
        self.status = 200
        self.delay_s = 0.0
        self.headers: dict[str, str] = {}
        self.asked: list[str | None] = []
        self.port = 0

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


@pytest.fixture
async def issuer() -> AsyncIterator[Issuer]:
    made = Issuer()
    app = web.Application()
    app.router.add_get("/keys", made.answer)
    app.router.add_get("/elsewhere", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest.fixture
async def fetcher() -> AsyncIterator[HttpKeyFetcher]:
    made = HttpKeyFetcher()
    yield made
    await made.close()


async def test_keys_come_once_and_then_only_when_they_changed(issuer: Issuer, fetcher: HttpKeyFetcher) -> None:
    first = await fetcher.fetch(issuer.url, None)
    assert first.document == document("one")
    again = await fetcher.fetch(issuer.url, first.etag)
    assert again.document is None
    issuer.body = document("two")
    assert (await fetcher.fetch(issuer.url, first.etag)).document == document("two")


@pytest.mark.parametrize("status", [304, 400, 401, 404, 500, 503])
async def test_other_statuses_are_failures(issuer: Issuer, fetcher: HttpKeyFetcher, status: int) -> None:
    issuer.status = status
    with pytest.raises(KeyFetchError, match=str(status)):
        await fetcher.fetch(issuer.url, None)


async def test_a_redirect_is_not_followed(issuer: Issuer, fetcher: HttpKeyFetcher) -> None:
    issuer.status, issuer.headers = 302, {"Location": "/elsewhere"}
    with pytest.raises(KeyFetchError, match="302"):
        await fetcher.fetch(issuer.url, None)
    assert len(issuer.asked) == 1


async def test_an_endless_document_is_cut_off(issuer: Issuer, fetcher: HttpKeyFetcher) -> None:
    issuer.body = b" " * (DOCUMENT_BYTES_MAX + 1)
    with pytest.raises(KeyFetchError, match="longer than"):
        await fetcher.fetch(issuer.url, None)


async def test_nobody_there_is_a_failure(fetcher: HttpKeyFetcher) -> None:
    with pytest.raises(KeyFetchError):
        await fetcher.fetch("http://127.0.0.1:1/keys", None)


async def test_keys_from_a_file(fetcher: HttpKeyFetcher, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(KeyFetchError, match="No such file"):
        await fetcher.fetch(str(path), None)
    path.write_bytes(document("one"))
    assert (await fetcher.fetch(str(path), None)).document == document("one")


@pytest.mark.slow
async def test_a_slow_issuer_holds_nobody_and_known_tokens_go_on(issuer: Issuer) -> None:
    failures: list[BaseException] = []
    tasks, clock = TaskSet(lambda _, error: failures.append(error)), SystemClock()
    made = settings(jwks_url=issuer.url, cooldown_s=0.01)
    authenticator = Authenticator(made, clock=clock, tasks=tasks)
    good = token(clock.wall_s())
    assert (await authenticator.authenticate(good)).tenant == "acme"
    issuer.delay_s = 3.0
    await asyncio.sleep(0.02)
    since_s = clock.monotonic_s()
    with pytest.raises(RequestError) as caught:
        await authenticator.authenticate(token(clock.wall_s(), kid="new"))
    assert caught.value.kind.value.code == "auth_unavailable"
    assert clock.monotonic_s() - since_s <= 0.6
    assert authenticator.known(good, clock.wall_s()) is not None
    assert authenticator.known(token(clock.wall_s(), jti="other"), clock.wall_s()) is not None
    await tasks.close()
    await authenticator.close()
    assert not failures
