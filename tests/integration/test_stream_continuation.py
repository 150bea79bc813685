"""A stream that breaks is continued on another cluster: one valid, gapless stream, usage over both halves."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import msgspec
import pytest

from gir.model.ids import ClusterId, ModelId
from gir.model.outcome import Outcome
from gir.model.policy import ForwardPolicy, ModelPolicy, PolicySnapshot, TierPolicy
from gir.net.exchange import Exchange
from tests.support.router import API_KEY, TestRouter
from tests.support.upstream import EVENT_STREAM, FakeCluster, Script, chunk_event

RESUME = PolicySnapshot(
    tiers=(TierPolicy(name="reserved", price_per_slot_hour=1),),
    models=(ModelPolicy(name=ModelId("llama"), resume=True),),
)
Start = Callable[..., Awaitable[tuple[TestRouter, list[FakeCluster]]]]
TOTAL = 8


def usage_event(prompt: int, completion: int) -> bytes:
    return (
        b'data: {"id":"chatcmpl-2","object":"chat.completion.chunk","created":2,"model":"llama","choices":[],'
        b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n'
    ) % (prompt, completion, prompt + completion)


def engine(breaks_after: int | None, *, says_so: bool = False) -> Script:
    """Streams the numbered tokens that are still missing, as an engine that honours continue_final_message does."""

    async def answer(exchange: Exchange) -> None:
        asked = json.loads(exchange.body_ready or b"")
        last = asked["messages"][-1]
        first = last["content"].count("tok-") if asked.get("continue_final_message") else 0
        end = min(TOTAL, first + asked.get("max_tokens", TOTAL))
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True))
        for number in range(first, end):
            if breaks_after is not None and number - first == breaks_after:
                await asyncio.sleep(0.02)
                if says_so:
                    exchange.write(b'data: {"error":{"message":"out of memory","code":500}}\n\ndata: [DONE]\n\n')
                    exchange.finish()
                else:
                    exchange.abort()
                return
            exchange.write(chunk_event(f"tok-{number:04d} "))
        exchange.write(chunk_event("", finish="stop"))
        if asked.get("stream_options", {}).get("include_usage"):
            exchange.write(usage_event(10 + first, end - first))
        exchange.write(b"data: [DONE]\n\n")
        exchange.finish()

    return answer


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    running: list[TestRouter | FakeCluster] = []

    async def begin(*scripts: Script, policy: PolicySnapshot = RESUME) -> tuple[TestRouter, list[FakeCluster]]:
        left = list(scripts)

        async def in_turn(exchange: Exchange) -> None:
            await left.pop(0)(exchange)

        clusters = [await FakeCluster(f"c{number}", in_turn).start() for number in range(3)]
        router = await TestRouter(clusters, policy).start()
        running.extend([router, *clusters])
        return router, clusters

    yield begin
    for item in running:
        await item.close()


async def ask(router: TestRouter, **extra: object) -> bytes:
    body = {"model": "llama", "messages": [{"role": "user", "content": "hi"}], "stream": True, **extra}
    headers = {"authorization": f"Bearer {API_KEY}", "content-type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{router.url}/v1/chat/completions", data=json.dumps(body), headers=headers) as answer,
    ):
        assert answer.status == 200
        return await answer.read()


def chunks_of(body: bytes) -> list[dict[str, object]]:
    events = [event.removeprefix(b"data: ") for event in body.split(b"\n\n") if event]
    return [json.loads(event) for event in events if event != b"[DONE]"]


def text_of(body: bytes) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for chunk in chunks_of(body)
        for choice in chunk.get("choices", [])  # type: ignore[attr-defined]
    )


ALL = "".join(f"tok-{number:04d} " for number in range(TOTAL))


@pytest.mark.parametrize("breaks_after", range(1, TOTAL))
async def test_the_client_sees_one_gapless_stream(start: Start, breaks_after: int) -> None:
    router, clusters = await start(engine(breaks_after), engine(None))
    body = await ask(router)
    assert text_of(body) == ALL
    assert body.endswith(b"data: [DONE]\n\n")
    assert {(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks_of(body)} == {
        ("chatcmpl-1", 1, "llama")
    }
    assert body.count(b'"role"') == 1, "only the first half carries the role"
    assert sum(len(cluster.seen) for cluster in clusters) == 2
    assert router.recorder.ended[0].outcome is Outcome.COMPLETED


def frozen(after: int) -> Script:
    async def answer(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True))
        for number in range(after):
            exchange.write(chunk_event(f"tok-{number:04d} "))
        await asyncio.sleep(30.0)

    return answer


async def look_until_it_is_ended(router: TestRouter, clusters: list[FakeCluster]) -> None:
    """As the watch does while these clusters are unreachable."""
    while not any(router.dispatcher.end_silent_streams(ClusterId(cluster.name)) for cluster in clusters):
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("resume", [True, False])
async def test_a_stream_of_a_frozen_cluster_is_continued_or_says_that_it_broke(start: Start, resume: bool) -> None:
    models = RESUME.models if resume else ()
    policy = msgspec.structs.replace(RESUME, models=models, forward=ForwardPolicy(lost_idle_s=0.1))
    router, clusters = await start(frozen(3), engine(None), policy=policy)
    asked = asyncio.ensure_future(ask(router))
    await asyncio.wait_for(look_until_it_is_ended(router, clusters), 5.0)
    body = await asyncio.wait_for(asked, 5.0)
    if resume:
        assert (text_of(body), body.endswith(b"data: [DONE]\n\n")) == (ALL, True)
    else:
        assert b"does not answer any more" in body
        assert b"[DONE]" not in body


async def test_an_engine_that_fails_and_says_done_is_continued(start: Start) -> None:
    router, _ = await start(engine(3, says_so=True), engine(None))
    body = await ask(router)
    assert (text_of(body), body.count(b"[DONE]"), b"out of memory" in body) == (ALL, 1, False)


async def test_the_second_half_may_be_written_otherwise(start: Start) -> None:
    async def other_engine(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        events = [chunk_event(f"tok-{number:04d} ") for number in range(3, TOTAL)] + [chunk_event("", finish="stop")]
        odd = b': comment\n\ndata: [1]\n\ndata: no JSON\n\ndata: {"choices":5,"usage":{"prompt_tokens":"x"}}\n\n'
        for event in (odd, *events, b"data: [DONE]\n\n"):
            exchange.write(event.replace(b"\n", b"\r\n"))
            await asyncio.sleep(0)
        exchange.finish()

    router, _ = await start(engine(3), other_engine)
    body = await ask(router)
    assert ALL.split() == re.findall(r"tok-\d+", body.decode())
    assert body.count(b"[DONE]") == 1
    assert router.recorder.ended[0].outcome is Outcome.COMPLETED


async def test_it_can_break_twice(start: Start) -> None:
    router, _ = await start(engine(2), engine(3), engine(None))
    body = await ask(router)
    assert text_of(body) == ALL
    assert body.endswith(b"data: [DONE]\n\n")


async def test_usage_is_summed_over_both_halves(start: Start) -> None:
    router, _ = await start(engine(3), engine(None))
    body = await ask(router, stream_options={"include_usage": True})
    usage = chunks_of(body)[-1]["usage"]
    assert usage == {"prompt_tokens": 10, "completion_tokens": TOTAL, "total_tokens": 10 + TOTAL}
    settled = router.recorder.ended[0].usage
    assert settled is not None
    assert (settled.prompt_tokens, settled.completion_tokens) == (10, TOTAL)


async def test_the_rest_is_asked_for_in_the_engines_words(start: Start) -> None:
    router, clusters = await start(engine(3), engine(None))
    await ask(router, max_tokens=TOTAL, seed=7, x_custom={"a": 1})
    bodies = [json.loads(body) for cluster in clusters for _, body in cluster.seen]
    second = next(body for body in bodies if body.get("continue_final_message"))
    assert second["add_generation_prompt"] is False
    assert second["messages"][-1] == {"role": "assistant", "content": "tok-0000 tok-0001 tok-0002 "}
    assert second["max_tokens"] == TOTAL - 3
    assert second["seed"] == 7
    assert second["x_custom"] == {"a": 1}


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
        {"n": 2},
        {"guided_json": {"type": "object"}},
    ],
    ids=lambda extra: next(iter(extra)),
)
async def test_what_text_cannot_carry_over_is_not_continued(start: Start, extra: dict[str, object]) -> None:
    router, clusters = await start(engine(3), engine(None))
    body = await ask(router, **extra)
    assert b"upstream_failed" in body
    assert b"[DONE]" not in body
    assert sum(len(cluster.seen) for cluster in clusters) == 1


async def test_it_is_off_unless_policy_says_so(start: Start) -> None:
    router, clusters = await start(engine(3), policy=PolicySnapshot(tiers=RESUME.tiers))
    body = await ask(router)
    assert b"upstream_failed" in body
    assert sum(len(cluster.seen) for cluster in clusters) == 1


async def test_an_error_event_in_mid_stream_is_continued_too(start: Start) -> None:
    async def says_error(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True) + chunk_event("tok-0000 "))
        await asyncio.sleep(0.02)
        exchange.write(b'data: {"error":{"message":"agent: pod died","code":"upstream_failed"}}\n\n')
        exchange.finish()

    router, _ = await start(says_error, engine(None))
    body = await ask(router)
    assert text_of(body) == ALL
    assert b"pod died" not in body


async def test_when_nobody_can_go_on_the_break_is_told(start: Start) -> None:
    async def refuses(exchange: Exchange) -> None:
        exchange.abort()

    router, _ = await start(engine(3), refuses, refuses)
    body = await ask(router)
    assert text_of(body) == "tok-0000 tok-0001 tok-0002 "
    assert b"upstream_failed" in body
    assert b"[DONE]" not in body
    assert router.recorder.ended[0].outcome is Outcome.TRUNCATED
    assert router.dispatcher.budget.retrying == 0


async def test_all_streams_of_a_lost_cluster_are_continued_however_small_the_retry_budget(start: Start) -> None:
    killed = asyncio.Event()

    async def dies(exchange: Exchange) -> None:
        exchange.start(200, EVENT_STREAM)
        exchange.write(chunk_event("", role=True) + chunk_event("tok-0000 "))
        await killed.wait()
        exchange.abort()

    router, clusters = await start()
    lost = clusters[0]
    for cluster in clusters:
        cluster.script = dies if cluster is lost else engine(None)
    asked = [asyncio.ensure_future(ask(router)) for _ in range(24)]
    for _ in range(400):
        if (
            sum(not each.done() for each in asked)
            == len(lost.seen)
            == len(router.dispatcher.underway(lost.name).streams)
        ):
            break
        await asyncio.sleep(0.005)
    assert len(lost.seen) > router.dispatcher.budget.limit() + 1, "the budget alone would have continued them all"
    router.registry.probe(ClusterId(lost.name), False, None, router.clock.monotonic_s(), refused=True)
    killed.set()
    assert {text_of(body) for body in await asyncio.gather(*asked)} == {ALL}
    assert router.dispatcher.budget.retrying == router.dispatcher.budget.active == 0


async def test_a_slow_first_token_is_hedged(start: Start) -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(10)

    policy = PolicySnapshot(tiers=RESUME.tiers, forward=ForwardPolicy(hedge_after_s=0.1))
    router, clusters = await start(slow, engine(None), policy=policy)
    body = await asyncio.wait_for(ask(router), 3)
    assert text_of(body) == ALL
    assert sum(len(cluster.seen) for cluster in clusters) == 2
    for _ in range(100):
        if sum(cluster.gone for cluster in clusters) == 1:
            break
        await asyncio.sleep(0.01)
    assert sum(cluster.gone for cluster in clusters) == 1, "the loser's upstream is closed"
    assert router.dispatcher.budget.retrying == 0
