"""Limits and accounting as clients and engines see them: the real pipeline on real ports."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import msgspec
import pytest

from gir.model.outcome import Outcome
from gir.model.policy import FlowPolicy, LimitRule, PolicySnapshot, TierPolicy
from gir.net.exchange import Exchange
from tests.support.router import API_KEY, PLAIN_KEY, TestRouter
from tests.support.upstream import EVENT_STREAM, JSON, FakeCluster, Script, chunk_event

Start = Callable[..., Awaitable[tuple[TestRouter, FakeCluster]]]
HEADERS = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
ANSWER = b'{"id":"1","object":"chat.completion","choices":[],"usage":{"prompt_tokens":30,"completion_tokens":20}}'
USAGE_CHUNK = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"llama","choices":[],'
    b'"usage":{"prompt_tokens":30,"completion_tokens":3,"total_tokens":33}}\n\n'
)
Answered = tuple[int, bytes, dict[str, str]]


async def good(exchange: Exchange) -> None:
    exchange.respond(200, JSON, ANSWER)


async def reset(exchange: Exchange) -> None:
    exchange.abort()


async def hang(exchange: Exchange) -> None:
    await asyncio.sleep(30)


async def usage_last(exchange: Exchange) -> None:
    """As engines stream: the usage chunk comes after the finish reason, and not in the same packet."""
    exchange.start(200, EVENT_STREAM)
    exchange.write(chunk_event("", role=True) + b"".join(chunk_event(f"tok-{number}") for number in range(3)))
    exchange.write(chunk_event("", finish="stop"))
    await asyncio.sleep(0.05)
    exchange.write(USAGE_CHUNK)
    await asyncio.sleep(0.02)
    exchange.write(b"data: [DONE]\n\n")
    exchange.finish()


async def typed_tokens(exchange: Exchange) -> None:
    """The Responses API: three events before the first token, and after the last one an end that never comes."""
    exchange.start(200, EVENT_STREAM)
    for kind in ("created", "in_progress", "output_item.added"):
        exchange.write(b'data: {"type":"response.%b","response":{"id":"r","usage":null}}\n\n' % kind.encode())
    for number in range(4):
        exchange.write(b'data: {"type":"response.output_text.delta","delta":"tok-%d "}\n\n' % number)
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    usage = b'"usage":{"input_tokens":30,"output_tokens":4,"total_tokens":34}'
    exchange.write(b'data: {"type":"response.completed","response":{"id":"r","status":"completed",%b}}\n\n' % usage)
    await asyncio.sleep(30)


def status(code: int) -> Script:
    async def answer(exchange: Exchange) -> None:
        exchange.respond(code, JSON, b'{"error":{"message":"engine says so","code":%d}}' % code)

    return answer


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[TestRouter | FakeCluster] = []

    async def begin(script: Script, *limits: LimitRule, slots: int = 8) -> tuple[TestRouter, FakeCluster]:
        cluster = await FakeCluster("a", script).start()
        tiers = (TierPolicy(name="reserved", price_per_slot_hour=1),)
        router = await TestRouter([cluster], PolicySnapshot(tiers=tiers, limits=limits)).start()
        router.beat(cluster, slots=slots)
        running.extend([router, cluster])
        return router, cluster

    yield begin
    for item in running:
        await item.close()


async def ask(
    router: TestRouter, *, timeout_s: float = 5.0, headers: dict[str, str] = HEADERS, **fields: object
) -> Answered:
    body = {"model": "llama", "messages": [{"role": "user", "content": "x" * 368}], "max_tokens": 100, **fields}
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"{router.url}/v1/chat/completions",
            data=json.dumps(body),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as answer,
    ):
        return answer.status, await answer.read(), {name.lower(): value for name, value in answer.headers.items()}


async def until(met: Callable[[], bool], within_s: float = 2.0) -> None:
    async with asyncio.timeout(within_s):
        while not met():
            await asyncio.sleep(0.005)


def left(router: TestRouter, kind: str) -> object:
    """Units of the only rule's counter of `kind` that could still be had."""
    rows = router.limiter.rows(router.clock.monotonic_s())
    return next(row["remaining"] for row in rows if str(row["counter"]).endswith(kind))


async def test_a_used_up_limit_is_429_with_all_that_a_client_needs(start: Start) -> None:
    router, cluster = await start(good, LimitRule(name="per-minute", requests_per_min=2, tokens_per_min=5_000))
    for remaining in ("1", "0"):
        code, _, headers = await ask(router)
        assert code == 200
        assert headers["x-ratelimit-limit-requests"] == "2"
        assert headers["x-ratelimit-remaining-requests"] == remaining
        assert headers["x-ratelimit-reset-requests"].endswith("s")
        assert headers["x-ratelimit-limit-tokens"] == "5000"
    code, body, headers = await ask(router)
    error = json.loads(body)["error"]
    assert (code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert error["message"].startswith("gir: limit `per-minute`: 2 requests per minute are used up")
    assert 1 <= int(headers["retry-after"]) <= 75, "when the window opens again, jittered, in whole seconds"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-gir-reason"] == "limit:per-minute:requests"
    assert len(cluster.seen) == 2, "what is over the limit never reaches a cluster"


async def test_parallel_requests_cannot_overspend_a_token_limit(start: Start) -> None:
    """Tokens are reserved before the call: five times 200 fit into 1,000, however many ask at once."""
    router, cluster = await start(hang, LimitRule(name="t", tokens_per_min=1_000), slots=40)
    asks = [asyncio.ensure_future(ask(router)) for _ in range(12)]
    await until(lambda: sum(one.done() for one in asks) == 7)
    refused = [one.result()[0] for one in asks if one.done()]
    assert refused == [429] * 7
    assert len(cluster.seen) == 5
    for one in asks:
        one.cancel()
    await asyncio.gather(*asks, return_exceptions=True)
    await until(lambda: router.ledger.open_accounts == 0)


@pytest.mark.parametrize(
    ("script", "model", "code", "counted"),
    [
        (good, "llama", 200, 1),
        (status(400), "llama", 400, 1),
        (status(422), "llama", 422, 1),
        (good, "absent", 404, 1),
        (status(429), "llama", 429, 0),
        (status(503), "llama", 503, 0),
        (status(500), "llama", 502, 0),
        (reset, "llama", 502, 0),
    ],
)
async def test_what_counts_as_a_request(start: Start, script: Script, model: str, code: int, counted: int) -> None:
    """One's own mistakes count, as elsewhere; the fleet's failures are given back. Tokens are for what was served."""
    router, _ = await start(script, LimitRule(name="r", requests_per_min=10, tokens_per_min=5_000, per=()))
    got, _, _ = await ask(router, model=model)
    assert got == code
    assert left(router, "requests") == 10 - counted
    assert left(router, "tokens") == 5_000 - (50 if code == 200 else 0)
    assert [row.model for row in router.ledger.rows()] == ["(other)" if model == "absent" else model]


async def test_leaving_a_cluster_at_work_counts_and_leaving_the_queue_does_not(start: Start) -> None:
    router, cluster = await start(hang, LimitRule(name="r", requests_per_min=10, tokens_per_min=5_000), slots=1)
    working = asyncio.ensure_future(ask(router))
    await until(lambda: len(cluster.seen) == 1)
    queued = asyncio.ensure_future(ask(router))
    await until(lambda: router.waiting.flow.waiting == 1)
    queued.cancel()
    await until(lambda: len(router.recorder.ended) == 1)
    assert left(router, "requests") == 9, "the one at work"
    working.cancel()
    await until(lambda: len(router.recorder.ended) == 2)
    assert {scope.outcome for scope in router.recorder.ended} == {Outcome.CLIENT_GONE}
    assert left(router, "requests") == 9
    assert left(router, "tokens") == 5_000, "nothing was delivered"
    await asyncio.gather(working, queued, return_exceptions=True)


async def test_a_deadline_of_ones_own_that_a_cluster_works_for_counts_and_the_policys_does_not(start: Start) -> None:
    router, cluster = await start(hang, LimitRule(name="r", requests_per_min=10, tokens_per_min=5_000))
    code, _, _ = await ask(router, headers={**HEADERS, "x-gir-deadline-ms": "80"})
    assert (code, len(cluster.seen)) == (504, 1)
    assert left(router, "requests") == 9
    policy = router.policies.current
    router.policies.current = msgspec.structs.replace(
        policy, forward=msgspec.structs.replace(policy.forward, total_s=0.08)
    )
    code, _, _ = await ask(router)
    assert (code, len(cluster.seen)) == (504, 2)
    assert left(router, "requests") == 9
    assert left(router, "tokens") == 5_000


@pytest.mark.parametrize("asked", [True, False], ids=["asked", "hidden"])
async def test_a_stream_is_settled_by_the_usage_that_comes_after_its_end(start: Start, asked: bool) -> None:
    router, cluster = await start(usage_last, LimitRule(name="t", tokens_per_min=5_000))
    options = {"stream_options": {"include_usage": True}} if asked else {}
    code, body, headers = await ask(router, stream=True, **options)
    assert code == 200
    assert json.loads(cluster.seen[0][1])["stream_options"] == {"include_usage": True}
    assert (USAGE_CHUNK in body) is asked
    assert body.endswith(b"data: [DONE]\n\n")
    assert body.count(b"\n\n") == (7 if asked else 6), "everything else as the engine sent it"
    assert headers["x-ratelimit-limit-tokens"] == "5000"
    await until(lambda: bool(router.recorder.ended))
    (row,) = router.ledger.rows()
    assert (row.prompt_tokens, row.completion_tokens, row.estimated_requests) == (30, 3, 0)
    assert left(router, "tokens") == 5_000 - 33


async def test_fair_sharing_reckons_with_the_answers_a_model_usually_gives(start: Start) -> None:
    router, _ = await start(good)
    for _ in range(2):
        await ask(router, max_tokens=None)
    await ask(router, max_tokens=7)
    await until(lambda: len(router.recorder.ended) == 3)
    first, second, capped = (scope.ticket.tokens for scope in router.recorder.ended if scope.ticket is not None)
    prompt = capped - 7
    assert first == prompt + 256
    assert second == prompt + 244, "an answer of 20 tokens has been seen"


async def test_only_a_trusted_caller_chooses_its_class(start: Start) -> None:
    router, cluster = await start(good)
    for key in (PLAIN_KEY, API_KEY):
        claimed = {"authorization": f"Bearer {key}", "x-gir-criticality": "critical", "x-llm-d-slo-ttft-ms": "1"}
        assert (await ask(router, headers={**HEADERS, **claimed}))[0] == 200
    (plain, _), (trusted, _) = cluster.seen
    assert plain[b"x-gir-criticality"] == b"standard"
    assert b"x-llm-d-slo-ttft-ms" not in plain
    assert trusted[b"x-gir-criticality"] == b"critical"
    assert trusted[b"x-llm-d-slo-ttft-ms"] == b"1"


@pytest.mark.parametrize("claimed", ["99999999999999999999", "-1", "0", "1e3", "soon"])
async def test_a_deadline_that_is_no_time_is_refused_not_wrapped_around(start: Start, claimed: str) -> None:
    router, cluster = await start(good)
    code, body, _ = await ask(router, headers={**HEADERS, "x-gir-deadline-ms": claimed})
    assert code == 400
    assert "x-gir-deadline-ms" in json.loads(body)["error"]["message"]
    assert not cluster.seen


async def test_sheddable_work_goes_first_and_is_told_why(start: Start) -> None:
    router, cluster = await start(hang, slots=1)
    working = asyncio.ensure_future(ask(router))
    await until(lambda: len(cluster.seen) == 1)
    code, body, headers = await ask(router, headers={**HEADERS, "x-gir-criticality": "sheddable"})
    error = json.loads(body)["error"]
    assert (code, error["code"]) == (429, "overloaded")
    assert "class sheddable" in error["message"]
    assert headers["x-gir-reason"] == "shed:sheddable"
    assert int(headers["retry-after"]) >= 1
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize(("key", "in_flight_max", "code"), [(API_KEY, 1, 429), ("wrong", 9, 401)])
async def test_a_body_is_not_waited_for_when_the_answer_is_no(
    start: Start, key: str, in_flight_max: int, code: int
) -> None:
    router, cluster = await start(hang)
    router.waiting.apply(FlowPolicy(in_flight_max=in_flight_max))
    working = asyncio.ensure_future(ask(router))
    await until(lambda: len(cluster.seen) == 1)
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    writer.write(
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        "content-type: application/json\r\ncontent-length: 500000\r\n\r\n".encode()
    )
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 1.0)).lower()
    assert head.startswith(b"http/1.1 %d " % code)
    assert (b"\r\nretry-after: " in head) is (code == 429)
    writer.close()
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)


@pytest.mark.parametrize(
    ("leaves_at", "outcome", "estimated"),
    [(b"tok-3", Outcome.CLIENT_GONE, 1), (b"response.completed", Outcome.COMPLETED, 0)],
)
async def test_a_client_that_has_the_end_may_leave_and_one_that_leaves_before_pays_for_its_tokens(
    start: Start, leaves_at: bytes, outcome: Outcome, estimated: int
) -> None:
    """Clients stop reading at the last event they know, not at the end of the body."""
    router, cluster = await start(typed_tokens)
    body = json.dumps({"model": "llama", "input": "x" * 88, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", router.port)
    head = (
        f"POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\ncontent-length: {len(body)}\r\n"
    )
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    await asyncio.wait_for(reader.readuntil(leaves_at), 2.0)
    writer.close()
    await until(lambda: len(router.recorder.ended) == 1 and cluster.gone == 1)
    scope = router.recorder.ended[0]
    assert scope.outcome is outcome
    assert scope.status == (200 if outcome is Outcome.COMPLETED else 0)
    (row,) = router.ledger.rows()
    assert (row.completion_tokens, row.estimated_requests) == (4, estimated), "four tokens, not seven or eight events"


async def test_names_that_clients_make_up_become_neither_series_nor_rows(start: Start) -> None:
    router, _ = await start(good, LimitRule(name="r", requests_per_min=3, per=()))
    asked = ["made-up-0", "made-up-1", "llama", "made-up-2", "llama"]
    codes = [(await ask(router, model=model))[0] for model in asked]
    assert codes == [404, 404, 200, 429, 429]
    (family,) = router.metrics.requests.collect()
    counts = {
        (sample.labels["model"], sample.labels["outcome"]): sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }
    assert counts == {("unknown", "rejected"): 3, ("llama", "completed"): 1, ("llama", "rejected"): 1}
    assert {row.model: row.requests for row in router.ledger.rows()} == {"llama": 2, "(other)": 3}
