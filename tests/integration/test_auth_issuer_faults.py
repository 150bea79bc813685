"""An issuer that is down, broken, turns its keys over, or is used as a lever against us (F26), over real HTTP.

The router's figures (a fetch every 240 s and at most every 30 s) are shortened; what is promised about them is not.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest

from gir.auth.authenticator import Authenticator
from gir.clock import SystemClock
from gir.model.errors import ErrorKind, RequestError
from gir.tasks import TaskSet
from tests.support.issuing import RSA_KEYS, document, settings, token
from tests.support.key_server import KeyServer, key_server

pytestmark = pytest.mark.slow
COOLDOWN_S, REFRESH_S, TICK_S = 0.5, 1.5, 1.0
"""`TICK_S`: how often the router looks whether a refresh is due."""
KEY_WAIT_S = 0.3
LATE_S = 0.25
"""What a timer may be late on a busy machine."""


class Door:
    """An authenticator under way, and how long it let anybody wait."""

    def __init__(self, issuer: KeyServer, tasks: TaskSet) -> None:
        made = settings(jwks_url=issuer.url, cooldown_s=COOLDOWN_S, refresh_s=REFRESH_S)
        self.clock = SystemClock()
        self.authenticator = Authenticator(made, clock=self.clock, tasks=tasks)
        self.waited_s = 0.0
        self.number = 0

    async def knock(self, kid: str, *, signed_by: str = "one") -> ErrorKind | None:
        """Come with a token nobody has seen before; why it was refused, None when it was let in."""
        self.number += 1
        fresh = token(self.clock.wall_s(), kid=kid, key=RSA_KEYS[signed_by], jti=str(self.number))
        since_s = self.clock.monotonic_s()
        try:
            await self.authenticator.authenticate(fresh)
        except RequestError as error:
            return error.kind
        finally:
            self.waited_s = max(self.waited_s, self.clock.monotonic_s() - since_s)
        return None


@pytest.fixture
async def issuer() -> AsyncIterator[KeyServer]:
    async with key_server() as made:
        yield made


@pytest.fixture
async def door(issuer: KeyServer) -> AsyncIterator[Door]:
    failures: list[BaseException] = []
    tasks = TaskSet(lambda _, error: failures.append(error))
    made = Door(issuer, tasks)
    made.authenticator.start()
    assert await made.knock("one") is None
    yield made
    await tasks.close()
    await made.authenticator.close()
    assert not failures


def seconds(door: Door, lasts_s: float) -> Iterator[float]:
    """Seconds since now, until `lasts_s` are over."""
    since_s = door.clock.monotonic_s()
    while (passed_s := door.clock.monotonic_s() - since_s) < lasts_s:
        yield passed_s


async def until(door: Door, key: str, wanted: ErrorKind | None) -> float:
    """Knock with one key until the answer is `wanted`; seconds that took."""
    for passed_s in seconds(door, 10.0):
        if await door.knock(key, signed_by=key) is wanted:
            return passed_s
        await asyncio.sleep(0.02)
    raise AssertionError(f"{key} never got {wanted}")


@pytest.mark.parametrize("trouble", ["down", "500", "slow", "nonsense"])
async def test_known_keys_work_while_the_issuer_does_not_and_it_is_not_asked_more_often(
    issuer: KeyServer, door: Door, trouble: str
) -> None:
    before = len(issuer.asked)
    if trouble == "down":
        await issuer.down()
    issuer.status = 500 if trouble == "500" else 200
    issuer.delay_s = 3.0 if trouble == "slow" else 0.0
    issuer.body = b"<html>" if trouble == "nonsense" else issuer.body
    told: Counter[tuple[str, ErrorKind | None]] = Counter()
    for _ in seconds(door, 3.0):
        for kid in ("one", "two"):
            told[kid, await door.knock(kid, signed_by=kid)] += 1
        await asyncio.sleep(0.02)
    assert told["one", None] >= 5
    assert {why for kid, why in told if kid == "one"} == {None}, "a genuine token was refused"
    assert {why for kid, why in told if kid == "two"} <= {ErrorKind.AUTH_UNAVAILABLE, ErrorKind.UNAUTHENTICATED}
    assert told["two", ErrorKind.AUTH_UNAVAILABLE] >= 5
    asked = len(issuer.asked) - before
    assert asked == 0 if trouble == "down" else 1 <= asked <= 3.0 / COOLDOWN_S + 1
    assert door.waited_s <= KEY_WAIT_S + LATE_S
    if trouble == "down":
        await issuer.up()
    issuer.status, issuer.delay_s, issuer.body = 200, 0.0, document("one", "two")
    back_s = await until(door, "two", None)
    # A question that the slow issuer was asked last must come to its end first.
    assert back_s <= COOLDOWN_S + TICK_S + LATE_S + (3.0 if trouble == "slow" else 0.0)


async def test_a_new_key_costs_one_fetch_and_a_withdrawn_one_is_refused_at_the_next(
    issuer: KeyServer, door: Door
) -> None:
    await asyncio.sleep(COOLDOWN_S)
    issuer.body, before = document("one", "two"), len(issuer.asked)
    assert await door.knock("two", signed_by="two") is None
    assert len(issuer.asked) - before <= 1
    known = token(door.clock.wall_s(), kid="one")
    assert await door.authenticator.authenticate(known) is not None
    issuer.body = document("two")
    assert await until(door, "one", ErrorKind.UNAUTHENTICATED) <= REFRESH_S + TICK_S + LATE_S
    assert await door.knock("two", signed_by="two") is None
    with pytest.raises(RequestError, match="does not publish"):
        await door.authenticator.authenticate(known)


async def test_a_flood_of_made_up_keys_costs_one_fetch_a_cooldown_and_no_genuine_token_waits(
    issuer: KeyServer, door: Door
) -> None:
    issuer.delay_s = 0.05
    before, told = len(issuer.asked), Counter[ErrorKind | None]()
    genuine_s = 0.0
    for passed_s in seconds(door, 3.0):
        told.update(await asyncio.gather(*(door.knock(f"made-up-{door.number}-{n}") for n in range(20))))
        since_s = door.clock.monotonic_s()
        assert await door.knock("one") is None
        genuine_s = max(genuine_s, door.clock.monotonic_s() - since_s)
        lasted_s = passed_s
    assert set(told) <= {ErrorKind.UNAUTHENTICATED, ErrorKind.AUTH_UNAVAILABLE}
    assert sum(told.values()) >= 200
    asked = len(issuer.asked) - before
    assert 2 <= asked <= lasted_s / COOLDOWN_S + 1
    assert genuine_s <= LATE_S
    assert door.waited_s <= KEY_WAIT_S + LATE_S
