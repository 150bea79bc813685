"""Fetching an issuer's keys: once for everybody, rarely whatever the tokens claim, and on while the issuer is away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gir.auth.authenticator import Authenticator
from gir.auth.jwks import UNKNOWN_MAX, IssuerKeys, Lookup, VerifyKey, parse_key_set
from gir.auth.jwks_fetch import check_jwks_url
from gir.auth.settings import AuthSettings, JwtIssuer
from gir.model.errors import ErrorKind, RequestError
from gir.tasks import TaskSet
from tests.support.issuing import RSA_KEYS, FakeFetcher, document, settings, token
from tests.support.limiting import LoopClock

pytestmark = pytest.mark.looptime(noop_cycles=2)

TOO_DEEP = b'{"keys":' + b"[" * 9_999


class Observer:
    """Remembers what operators would have read."""

    def __init__(self) -> None:
        self.lines: list[tuple[bool, str]] = []

    def keys_fetched(self, issuer: str, ok: bool, detail: str) -> None:
        self.lines.append((ok, detail))

    def keys_file(self, ok: bool, detail: str) -> None:
        self.lines.append((ok, detail))


class Gate:
    """An authenticator at work, and the issuer behind it."""

    def __init__(self, served: bytes | None, made: AuthSettings) -> None:
        self.clock = LoopClock()
        self.fetcher = FakeFetcher(served)
        self.observer = Observer()
        self.failures: list[BaseException] = []
        self.tasks = TaskSet(lambda _, error: self.failures.append(error))
        self.authenticator = Authenticator(
            made, clock=self.clock, tasks=self.tasks, fetcher=self.fetcher, observer=self.observer
        )

    def token(self, **changes: Any) -> bytes:
        return token(self.clock.wall_s(), **changes)

    async def ask(self, credential: bytes) -> str:
        """`ok`, or the error code."""
        try:
            principal = self.authenticator.known(credential, self.clock.wall_s())
            principal = principal or await self.authenticator.authenticate(credential)
        except RequestError as error:
            return error.kind.value.code
        return "ok"


@asynccontextmanager
async def gate(served: bytes | None = document("one"), *, started: bool = True, **issuer: Any) -> AsyncIterator[Gate]:
    made = Gate(served, settings(**issuer))
    if started:
        made.authenticator.start()
        await asyncio.sleep(0.1)
    yield made
    await made.tasks.close()
    await made.authenticator.close()
    assert not made.failures


async def test_the_first_token_waits_for_the_keys_and_all_share_one_fetch() -> None:
    async with gate(started=False) as door:
        door.fetcher.delay_s = 0.2
        answers = await asyncio.gather(*(door.ask(door.token(jti=str(number))) for number in range(50)))
        assert answers == ["ok"] * 50
        assert door.fetcher.fetches == 1


async def test_no_request_waits_longer_than_300_ms_for_keys() -> None:
    async with gate(started=False) as door:
        door.fetcher.delay_s = 4.0
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        assert await door.ask(door.token()) == "auth_unavailable"
        assert loop.time() - since_s <= 0.301
        await asyncio.sleep(4.0)
        assert await door.ask(door.token()) == "ok", "the fetch went on without the request"
        assert door.fetcher.fetches == 1


async def test_a_request_that_leaves_does_not_end_the_fetch_for_others() -> None:
    async with gate(started=False) as door:
        door.fetcher.delay_s = 0.2
        first = asyncio.ensure_future(door.ask(door.token()))
        second = asyncio.ensure_future(door.ask(door.token(jti="2")))
        await asyncio.sleep(0.05)
        first.cancel()
        assert await second == "ok"
        assert door.fetcher.fetches == 1


@pytest.mark.slow
async def test_a_flood_of_made_up_kids_fetches_once_in_thirty_seconds() -> None:
    async with gate(refresh_s=10_000.0) as door:
        since = door.fetcher.fetches
        for second in range(95):
            for number in range(10):
                assert await door.ask(door.token(kid=f"made-up-{second}-{number}")) == "invalid_api_key"
            assert await door.ask(door.token(jti=str(second))) == "ok"
            await asyncio.sleep(1.0)
        assert door.fetcher.fetches - since <= 4


async def test_the_same_made_up_kid_does_not_even_fetch_once_in_thirty_seconds() -> None:
    async with gate(refresh_s=10_000.0) as door:
        await asyncio.sleep(31.0)
        for _ in range(8):
            assert await door.ask(door.token(kid="made-up")) == "invalid_api_key"
            await asyncio.sleep(30.0)
        assert door.fetcher.fetches == 2


async def test_a_new_key_is_usable_with_one_fetch() -> None:
    async with gate() as door:
        await asyncio.sleep(31.0)
        door.fetcher.document = document("one", "two")
        since = door.fetcher.fetches
        assert await door.ask(door.token(kid="two", key=RSA_KEYS["two"])) == "ok"
        assert door.fetcher.fetches - since == 1


async def test_a_new_key_inside_the_cooldown_is_fetched_when_it_ends() -> None:
    async with gate() as door:
        door.fetcher.document = document("one", "two")
        fresh = door.token(kid="two", key=RSA_KEYS["two"])
        assert await door.ask(fresh) == "invalid_api_key"
        await asyncio.sleep(31.0)
        assert door.fetcher.fetches == 2, "somebody asked for it: the background does not wait for its period"
        assert await door.ask(fresh) == "ok"


async def test_a_withdrawn_key_is_refused_within_five_minutes_even_for_remembered_tokens() -> None:
    async with gate(document("one", "two")) as door:
        good = door.token(kid="two", key=RSA_KEYS["two"], exp=door.clock.wall_s() + 86_400)
        assert await door.ask(good) == "ok"
        door.fetcher.document = document("one")
        await asyncio.sleep(300.0)
        assert await door.ask(good) == "invalid_api_key"
        assert await door.ask(door.token()) == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("broken", [None, b"<html>down for maintenance</html>", b'{"keys":"no"}', TOO_DEEP])
async def test_keys_in_hand_work_on_while_the_issuer_is_away(broken: bytes | None) -> None:
    assert settings().jwt[0].stale_s == 24 * 3_600.0
    async with gate(stale_s=600.0) as door:
        door.fetcher.document = broken
        for _ in range(9):
            await asyncio.sleep(60.0)
            assert await door.ask(door.token()) == "ok"
        await asyncio.sleep(61.0)
        assert await door.ask(door.token()) == "auth_unavailable"
        assert door.observer.lines[-1][0] is False
        door.fetcher.document = document("one")
        await asyncio.sleep(40.0)
        assert await door.ask(door.token()) == "ok"


@pytest.mark.slow
async def test_while_the_issuer_is_away_an_unknown_kid_is_not_called_forged() -> None:
    async with gate() as door:
        door.fetcher.document = None
        await asyncio.sleep(400.0)
        assert await door.ask(door.token(kid="two", key=RSA_KEYS["two"])) == "auth_unavailable"


@pytest.mark.slow
async def test_a_new_kid_is_not_held_for_absent_because_the_fetch_made_for_it_failed() -> None:
    async with gate() as door:
        await asyncio.sleep(40.0)  # the cooldown is over: the token itself makes the router ask
        door.fetcher.document = None
        new = door.token(kid="two", key=RSA_KEYS["two"])
        assert [await door.ask(new) for _ in range(3)] == ["auth_unavailable"] * 3
        door.fetcher.document = document("one", "two")
        await asyncio.sleep(31.0)
        assert await door.ask(new) == "ok"


@pytest.mark.slow
async def test_an_issuer_that_never_answered_makes_503_not_401_and_few_fetches() -> None:
    async with gate(None) as door:
        for _ in range(120):
            assert await door.ask(door.token()) == "auth_unavailable"
            await asyncio.sleep(1.0)
        assert door.fetcher.fetches <= 5


async def test_unchanged_keys_are_not_sent_again() -> None:
    async with gate(refresh_s=60.0) as door:
        await asyncio.sleep(200.0)
        assert door.fetcher.fetches >= 3
        assert door.fetcher.etags[0] is None
        assert all(door.fetcher.etags[1:])
        assert await door.ask(door.token()) == "ok"


async def test_new_settings_keep_keys_and_bad_ones_change_nothing() -> None:
    async with gate() as door:
        fetches = door.fetcher.fetches
        door.authenticator.apply(settings(), ())
        assert await door.ask(door.token()) == "ok"
        twice = AuthSettings(jwt=settings().jwt * 2)
        with pytest.raises(ValueError, match="twice"):
            door.authenticator.apply(twice, ())
        assert await door.ask(door.token(jti="2")) == "ok"
        assert door.fetcher.fetches == fetches


async def test_a_token_without_kid_is_tried_with_an_only_key() -> None:
    async with gate() as door:
        assert await door.ask(door.token(kid=None)) == "ok"
    async with gate(document("one", "two")) as door:
        assert await door.ask(door.token(kid=None)) == "invalid_api_key"


async def test_operators_see_each_issuer() -> None:
    async with gate() as door:
        (row,) = door.authenticator.rows()
        assert row["failing"] is False
        assert "1 keys, ok" in str(row["state"])


@pytest.mark.parametrize(
    "url", ["https://login.example/keys", "http://127.0.0.1:9/keys", "http://[::1]/keys", "http://localhost:1/x"]
)
def test_urls_that_may_serve_keys(url: str) -> None:
    check_jwks_url(url)


@pytest.mark.parametrize(
    "url",
    ["http://login.example/keys", "ftp://x/y", "https://", "file:///etc/passwd", "http://127.0.0.1.evil.example/k"],
)
def test_urls_that_must_not(url: str) -> None:
    with pytest.raises(ValueError, match="https"):
        check_jwks_url(url)


@pytest.mark.parametrize("fields", [{}, {"jwks_url": "https://x/y", "jwks_file": "keys.json"}])
def test_an_issuer_has_one_source(fields: dict[str, str]) -> None:
    made = AuthSettings(jwt=(JwtIssuer(issuer="i", audiences=("a",), **fields),))
    with pytest.raises(ValueError, match="either jwks_url or jwks_file"):
        Gate(None, made)


def test_kids_not_found_are_bounded() -> None:
    keys = IssuerKeys(settings().jwt[0])
    keys.replaced(parse_key_set(document("one"), ("RS256",)), None, 0.0)
    for number in range(UNKNOWN_MAX + 200):
        keys.not_found(f"kid-{number}", 0.0)
    assert len(keys._unknown) == UNKNOWN_MAX
    assert keys.find(f"kid-{UNKNOWN_MAX + 100}", 1.0) is Lookup.ABSENT
    assert isinstance(keys.find("one", 1.0), VerifyKey)


async def test_unavailable_says_when_to_come_back() -> None:
    async with gate(None) as door:
        with pytest.raises(RequestError) as caught:
            await door.authenticator.authenticate(door.token())
        assert caught.value.kind is ErrorKind.AUTH_UNAVAILABLE
        assert caught.value.retry_after_s is not None
