"""Before the first token a fault is the router's to hide: another cluster takes over and the client sees nothing."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.model.outcome import AttemptResult, Outcome
from gir.model.policy import ForwardPolicy, PolicySnapshot, TierPolicy
from gir.net.exchange import Exchange
from tests.support.router import API_KEY, TestRouter
from tests.support.upstream import EVENT_STREAM, JSON, FakeCluster, Script, chunk_event, stream_tokens

Start = Callable[..., Awaitable[tuple[TestRouter, FakeCluster, FakeCluster]]]
HEADERS = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
ANSWER = b'{"id":"1","object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
TIERS = (TierPolicy(name="reserved", price_per_slot_hour=1),)


async def good(exchange: Exchange) -> None:
    exchange.respond(200, JSON, ANSWER)


async def good_stream(exchange: Exchange) -> None:
    await stream_tokens(exchange, 5)


async def reset(exchange: Exchange) -> None:
    exchange.abort()


async def hang(exchange: Exchange) -> None:
    await asyncio.sleep(30)


def status(code: int, retry_after_s: int | None = None) -> Script:
    async def answer(exchange: Exchange) -> None:
        extra = [] if retry_after_s is None else [(b"retry-after", b"%d" % retry_after_s)]
        exchange.respond(code, JSON + extra, b'{"error":{"message":"engine says so","code":%d}}' % code)

    return answer


async def error_event_first(exchange: Exchange) -> None:
    exchange.start(200, EVENT_STREAM)
    exchange.write(b'data: {"error":{"message":"out of memory","code":500}}\n\ndata: [DONE]\n\n')
    exchange.finish()


async def empty_stream(exchange: Exchange) -> None:
    exchange.start(200, EVENT_STREAM)
    exchange.finish()


async def half_a_body(exchange: Exchange) -> None:
    exchange.start(200, JSON, length=len(ANSWER))
    exchange.write(ANSWER[:20])
    exchange.abort()


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[TestRouter | FakeCluster] = []

    async def begin(
        first: Script, second: Script = good, policy: PolicySnapshot | None = None
    ) -> tuple[TestRouter, FakeCluster, FakeCluster]:
        """The first script answers whoever is asked first, the second whoever is asked next."""
        scripts = [first, second]

        async def in_turn(exchange: Exchange) -> None:
            await (scripts.pop(0) if scripts else second)(exchange)

        clusters = [await FakeCluster(name, in_turn).start() for name in ("a", "b")]
        router = await TestRouter(clusters, policy).start()
        running.extend([router, *clusters])
        return router, clusters[0], clusters[1]

    yield begin
    for item in running:
        await item.close()


async def ask(
    router: TestRouter, *, stream: bool = False, timeout_s: float = 5.0, **fields: object
) -> tuple[int, bytes, dict[str, str]]:
    body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": stream, **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{router.url}/v1/chat/completions",
            data=json.dumps(body),
            headers=HEADERS,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer,
    ):
        return answer.status, await answer.read(), {name.lower(): value for name, value in answer.headers.items()}


@pytest.mark.parametrize("fault", [reset, status(500), status(502), half_a_body], ids=["reset", "500", "502", "cut"])
async def test_a_fault_is_hidden(start: Start, fault: Script) -> None:
    router, first, second = await start(fault)
    code, body, headers = await ask(router)
    assert (code, body) == (200, ANSWER)
    assert headers["x-gir-attempts"] == "2"
    assert headers["x-gir-reason"] == "failover"
    assert len(first.seen) == len(second.seen) == 1, "the fault hit one cluster and the other served"
    assert first.seen[0][1] == second.seen[0][1]
    assert router.recorder.ended[0].outcome is Outcome.COMPLETED


@pytest.mark.parametrize("fault", [error_event_first, empty_stream, reset], ids=["error-in-200", "empty", "reset"])
async def test_a_stream_without_a_token_is_hidden(start: Start, fault: Script) -> None:
    router, first, second = await start(fault, good_stream)
    code, body, headers = await ask(router, stream=True)
    assert code == 200
    assert headers["x-gir-attempts"] == "2"
    assert body.count(b"tok-") == 5
    assert body.endswith(b"data: [DONE]\n\n")
    assert b"out of memory" not in body
    assert len(first.seen) == len(second.seen) == 1


async def test_a_dead_port_is_hidden(start: Start) -> None:
    router, first, _ = await start(good)
    await first.close()
    for _ in range(4):
        code, _, headers = await ask(router)
        assert code == 200
        assert headers["x-gir-cluster"] == "b"
    assert any(len(scope.attempts) == 2 for scope in router.recorder.ended), "nobody was ever sent to the dead port"


async def test_a_silent_cluster_costs_its_deadline_and_no_more(start: Start) -> None:
    policy = PolicySnapshot(tiers=TIERS, forward=ForwardPolicy(whole_s=0.2))
    router, _, _ = await start(hang, policy=policy)
    code, _, headers = await ask(router)
    assert code == 200
    assert headers["x-gir-attempts"] == "2"
    scope = router.recorder.ended[0]
    assert scope.attempts[0].result is AttemptResult.LOCAL_FAULT
    assert scope.attempts[0].ended_s - scope.attempts[0].started_s < 1.0


async def test_waiting_requests_leave_a_cluster_that_is_given_up(start: Start) -> None:
    router, first, second = await start(hang)
    asked = asyncio.ensure_future(ask(router))
    while not (first.seen or second.seen):
        await asyncio.sleep(0.005)
    stuck = first if first.seen else second
    assert router.dispatcher.give_up_waiting(stuck.name, "declared suspect") == 1
    code, _, headers = await asked
    assert code == 200
    assert headers["x-gir-attempts"] == "2"
    await _until(lambda: stuck.gone == 1)


async def test_all_who_wait_on_a_lost_cluster_move_however_small_the_retry_budget(start: Start) -> None:
    router, stuck, other = await start(good)
    stuck.script, other.script = hang, good
    asked = [asyncio.ensure_future(ask(router)) for _ in range(16)]
    await _until(lambda: len(stuck.seen) + len(other.seen) == 16)
    assert len(stuck.seen) > router.dispatcher.budget.limit(), "the budget alone would have let them all go"
    assert router.dispatcher.give_up_waiting(stuck.name, "declared suspect") == len(stuck.seen)
    assert {code for code, _, _ in await asyncio.gather(*asked)} == {200}


async def test_all_that_breaks_with_a_cluster_moves_however_small_the_retry_budget(start: Start) -> None:
    killed = asyncio.Event()

    async def dies(exchange: Exchange) -> None:
        await killed.wait()
        exchange.abort()

    router, dying, other = await start(good)
    dying.script, other.script = dies, good
    asked = [asyncio.ensure_future(ask(router)) for _ in range(16)]
    await _until(lambda: len(dying.seen) + len(other.seen) == 16)
    budget = router.dispatcher.budget
    assert len(dying.seen) > 2 * budget.limit(), "the budget alone would have let them all go"
    killed.set()
    assert {code for code, _, _ in await asyncio.gather(*asked)} == {200}
    assert budget.retrying == budget.active == 0


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413, 422])
async def test_the_callers_own_errors_pass_byte_for_byte(start: Start, code: int) -> None:
    router, first, second = await start(status(code))
    got, body, headers = await ask(router)
    assert got == code
    assert body == b'{"error":{"message":"engine says so","code":%d}}' % code
    assert headers["x-gir-attempts"] == "1"
    assert len(first.seen) + len(second.seen) == 1, "a client error is never tried elsewhere"


async def test_a_cluster_that_lost_the_model_is_no_reason_to_give_up(start: Start) -> None:
    async def agent_404(exchange: Exchange) -> None:
        raise RequestError(ErrorKind.MODEL_NOT_FOUND, "no pod serves llama any more", param="model")

    router, _, _ = await start(agent_404)
    code, _, headers = await ask(router)
    assert code == 200
    assert headers["x-gir-attempts"] == "2"


@pytest.mark.parametrize(("said", "named"), [(429, "overloaded"), (503, "no_capacity")])
async def test_full_clusters_are_asked_once_more_and_then_believed(start: Start, said: int, named: str) -> None:
    router, first, second = await start(status(said, 7), status(said, 3))
    code, body, headers = await ask(router)
    assert code == said
    assert json.loads(body)["error"]["code"] == named
    assert int(headers["retry-after"]) >= 3
    assert int(headers["retry-after"]) <= 4, "the smallest Retry-After counts"
    assert len(first.seen) == len(second.seen) == 1


async def test_a_redirect_is_a_failure_and_is_never_followed(start: Start) -> None:
    elsewhere = await FakeCluster("elsewhere", good).start()

    async def redirect(exchange: Exchange) -> None:
        exchange.respond(302, [(b"location", f"{elsewhere.url}/v1/chat/completions".encode())], b"")

    router, first, second = await start(redirect)
    code, body, headers = await ask(router)
    assert (code, body, headers["x-gir-attempts"]) == (200, ANSWER, "2")
    assert len(first.seen) == len(second.seen) == 1
    assert elsewhere.seen == []
    await elsewhere.close()


async def test_every_cluster_failing_is_said_once(start: Start) -> None:
    router, _, _ = await start(reset, reset)
    code, body, headers = await ask(router)
    assert code == 502
    error = json.loads(body)["error"]
    assert error["message"].startswith("gir: ")
    assert error["code"] == "upstream_failed"
    assert headers["x-should-retry"] == "false"
    assert router.recorder.ended[0].outcome is Outcome.FAILED


async def test_a_broken_stream_is_told_not_hidden(start: Start) -> None:
    async def cut(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True) + chunk_event("tok-0000 "))
        await asyncio.sleep(0.05)
        exchange.write(chunk_event("tok-0001 ")[:40])
        exchange.abort()

    router, first, second = await start(cut, good_stream)
    code, body, _ = await ask(router, stream=True)
    assert code == 200
    assert b"[DONE]" not in body
    events = [event for event in body.split(b"\n\n") if event]
    assert json.loads(events[-1].removeprefix(b"data: "))["error"]["code"] == "upstream_failed"
    assert all(json.loads(event.removeprefix(b"data: ")) for event in events), "no half event reaches the client"
    assert len(first.seen) + len(second.seen) == 1, "nothing is retried after the first token"
    assert router.recorder.ended[0].outcome is Outcome.TRUNCATED


async def test_an_engine_that_fails_and_says_done_has_failed(start: Start) -> None:
    async def fail_politely(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True) + chunk_event("tok-0000 "))
        exchange.write(b'data: {"error":{"message":"out of memory","code":500}}\n\ndata: [DONE]\n\n')
        exchange.finish()

    router, _, _ = await start(fail_politely)
    _, body, _ = await ask(router, stream=True)
    assert body.count(b'"error"') == body.count(b"out of memory") == 1
    assert b"[DONE]" not in body
    assert router.recorder.ended[0].outcome is Outcome.TRUNCATED


async def test_a_clean_end_without_the_terminal_event_is_a_truncation(start: Start) -> None:
    async def no_done(exchange: Exchange) -> None:
        await stream_tokens(exchange, 3, done=False)

    router, _, _ = await start(no_done)
    _, body, _ = await ask(router, stream=True)
    assert b"[DONE]" not in body
    assert b'"upstream_failed"' in body
    assert router.recorder.ended[0].outcome is Outcome.TRUNCATED


@pytest.mark.parametrize("how", ["clean end", "reset"])
async def test_a_stream_cut_between_its_last_token_and_done_is_complete_and_says_so(start: Start, how: str) -> None:
    async def no_done(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True) + chunk_event("tok-0000 ") + chunk_event("", finish="stop"))
        await asyncio.sleep(0.05)
        exchange.finish() if how == "clean end" else exchange.abort()

    router, _, _ = await start(no_done)
    _, body, _ = await ask(router, stream=True)
    assert b'"error"' not in body
    assert body.endswith(b'"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
    assert router.recorder.ended[0].outcome is Outcome.COMPLETED


async def test_one_finished_choice_of_two_proves_nothing(start: Start) -> None:
    async def second_choice_cut(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True) + chunk_event("tok-0000 ") + chunk_event("", finish="stop"))
        await asyncio.sleep(0.05)
        exchange.abort()

    router, _, _ = await start(second_choice_cut)
    _, body, _ = await ask(router, stream=True, n=2)
    assert b'"upstream_failed"' in body, "the client was told that nothing was missing"
    assert router.recorder.ended[0].outcome is Outcome.TRUNCATED


async def test_nothing_is_left_behind(start: Start) -> None:
    router, _, _ = await start(reset, good)
    await ask(router)
    assert router.dispatcher.budget.active == 0
    assert router.dispatcher.budget.retrying == 0
    assert "0 waiting" in repr(router.dispatcher)
    await _until(lambda: all(pool.active == 0 for _, pool in router.pools.items()))


async def _until(condition: Callable[[], bool], timeout_s: float = 1.0) -> None:
    for _ in range(int(timeout_s / 0.005)):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition never came true")
