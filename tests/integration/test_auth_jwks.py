"""Keys over real HTTP: what an issuer may answer, and what must not be believed (F26)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gir.auth.authenticator import Authenticator
from gir.auth.jwks_fetch import DOCUMENT_BYTES_MAX, HttpKeyFetcher, KeyFetchError
from gir.clock import SystemClock
from gir.model.errors import RequestError
from gir.tasks import TaskSet
from tests.support.issuing import document, settings, token
from tests.support.key_server import KeyServer, key_server


@pytest.fixture
async def issuer() -> AsyncIterator[KeyServer]:
    async with key_server() as made:
        yield made


@pytest.fixture
async def fetcher() -> AsyncIterator[HttpKeyFetcher]:
    made = HttpKeyFetcher()
    yield made
    await made.close()


async def test_keys_come_once_and_then_only_when_they_changed(issuer: KeyServer, fetcher: HttpKeyFetcher) -> None:
    first = await fetcher.fetch(issuer.url, None)
    assert first.document == document("one")
    again = await fetcher.fetch(issuer.url, first.etag)
    assert again.document is None
    issuer.body = document("two")
    assert (await fetcher.fetch(issuer.url, first.etag)).document == document("two")


@pytest.mark.parametrize("status", [304, 400, 401, 404, 500, 503])
async def test_other_statuses_are_failures(issuer: KeyServer, fetcher: HttpKeyFetcher, status: int) -> None:
    issuer.status = status
    with pytest.raises(KeyFetchError, match=str(status)):
        await fetcher.fetch(issuer.url, None)


async def test_a_redirect_is_not_followed(issuer: KeyServer, fetcher: HttpKeyFetcher) -> None:
    issuer.status, issuer.headers = 302, {"Location": "/elsewhere"}
    with pytest.raises(KeyFetchError, match="302"):
        await fetcher.fetch(issuer.url, None)
    assert len(issuer.asked) == 1


async def test_an_endless_document_is_cut_off(issuer: KeyServer, fetcher: HttpKeyFetcher) -> None:
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
async def test_a_slow_issuer_holds_nobody_and_known_tokens_go_on(issuer: KeyServer) -> None:
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
