"""A pod's failure before the first token is another pod's work; after it, the truth in one error event."""

import asyncio
import json

import aiohttp
import pytest

from tests.support.agent_site import Site, engine

BOTH = ["a", "b"]


def two() -> list:  # type: ignore[type-arg]
    return [engine(name) for name in BOTH]


async def test_a_pod_that_refuses_connections_costs_no_request() -> None:
    async with Site(two()) as site:
        await site.engines["a"].server.stop()
        answers = [await site.stream(f"q{n}") for n in range(8)]
        assert {(status, headers["x-gir-pod"]) for status, headers, _ in answers} == {(200, "b")}
        await site.until(lambda: site.rows()["a"]["state"] == "stale")
        assert site.idle()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("status", {"status": 500}),
        ("status", {"status": 503, "retry_after_s": 5.0}),
        ("status", {"status": 429, "retry_after_s": 5.0}),
        ("reset", {}),
        ("error_event", {"after_chunks": 0}),
        ("cut", {"how": "fin", "after_chunks": 0}),
        ("cut", {"how": "rst", "after_chunks": 0}),
        ("malformed", {"how": "html"}),
    ],
)
async def test_a_failure_before_the_first_token_is_hidden(kind: str, fields: dict[str, object]) -> None:
    async with Site(two()) as site:
        site.order("a", kind, path="/v1/chat", **fields)
        for number in range(6):
            status, headers, text = await site.stream(f"q{number}")
            assert (status, headers["x-gir-pod"]) == (200, "b")
            assert text.endswith("data: [DONE]\n\n")
        assert site.idle()


async def test_a_pod_that_hangs_is_given_up_after_its_deadline_for_another() -> None:
    async with Site(two(), forward={"head_s": 0.15}) as site:
        site.order("a", "hang", path="/v1/chat")
        answers = await asyncio.gather(*(site.stream(f"q{n}") for n in range(4)))
        assert {(status, headers["x-gir-pod"]) for status, headers, _ in answers} == {(200, "b")}
        assert site.idle()


async def test_when_all_fail_the_engines_own_answer_reaches_the_client() -> None:
    async with Site(two()) as site:
        for name in BOTH:
            site.order(name, "status", status=500)
        status, headers, answer = await site.chat()
        assert status == 500
        assert "x-gir-origin" not in headers
        assert "agent:" not in json.dumps(answer)


async def test_when_all_are_full_their_retry_after_reaches_the_client() -> None:
    async with Site([engine(name) for name in "abc"]) as site:
        for name in "abc":
            site.order(name, "status", status=429, retry_after_s=7.0)
        status, headers, _ = await site.chat()
        assert (status, headers["retry-after"]) == (429, "7")
        assert {row["state"] for row in site.rows().values()} == {"ready"}
        asked = sum(one.driver.stats.requests for one in site.engines.values())
        assert asked <= 2


async def test_when_all_reset_the_agent_says_so_once() -> None:
    async with Site(two()) as site:
        for name in BOTH:
            site.order(name, "reset", path="/v1/chat")
        status, headers, answer = await site.chat()
        assert (status, headers["x-should-retry"]) == (502, "false")
        assert answer["error"]["message"].startswith("agent: ")
        assert answer["error"]["code"] == "upstream_failed"


async def test_when_nobody_listens_it_is_safe_to_retry() -> None:
    async with Site([engine("a")]) as site:
        await site.engines["a"].server.stop()
        status, headers, answer = await site.chat()
        assert (status, answer["error"]["code"]) == (503, "no_capacity")
        assert int(headers["retry-after"]) >= 1


@pytest.mark.parametrize("how", ["rst", "fin", "truncate"])
async def test_a_stream_that_breaks_ends_with_one_error_event_and_no_done(how: str) -> None:
    async with Site([engine("a")]) as site:
        site.order("a", "cut", how=how, after_chunks=4)
        status, _, text = await site.stream(max_tokens=20)
        assert status == 200
        events = [line for line in text.split("\n\n") if line]
        assert "tok-0001" in text
        assert json.loads(events[-1].removeprefix("data: "))["error"]["message"].startswith("agent: ")
        assert "[DONE]" not in text
        assert site.idle()


async def test_a_pod_that_only_fails_is_barred_although_its_metrics_look_idle() -> None:
    async with Site(two()) as site:
        site.order("a", "status", status=500)
        for number in range(20):
            assert (await site.chat(f"q{number}"))[0] == 200
        assert site.rows()["a"]["state"] == "barred"
        assert site.engines["a"].driver.stats.requests < 8


@pytest.mark.parametrize("phase", ["waiting", "streaming", "queued"])
async def test_a_client_that_leaves_frees_the_pod_within_100_ms(phase: str) -> None:
    gate = {"concurrent_max_per_pod": 1} if phase == "queued" else {}
    async with Site([engine("a", time_scale=1.0)], gate=gate) as site:
        if phase == "waiting":
            site.order("a", "hang", path="/v1/chat")
        body = {"model": "llama", "stream": True, "max_tokens": 500, "messages": [{"role": "user", "content": "x"}]}
        async with aiohttp.ClientSession(site.http._base_url, headers=site.http.headers) as client:
            asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
            await site.until(lambda: site.rows()["a"]["in_flight"] == 1)
            if phase == "streaming":
                answer = await asking
                await answer.content.readany()
                answer.close()
            if phase == "queued":
                second = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
                await site.until(lambda: site.agent._metrics.in_flight.one.value == 2)
                second.cancel()
                await site.until(lambda: site.agent._metrics.in_flight.one.value == 1, limit_s=0.1)
            asking.cancel()
        await site.until(lambda: site.idle() and site.active("a") == 0, limit_s=0.1)
        assert site.engines["a"].driver.stats.aborted + (phase == "waiting") >= 1


async def test_the_deadline_of_the_tier_above_holds_here() -> None:
    async with Site([engine("a", time_scale=1.0)]) as site:
        site.http.headers["x-gir-deadline-ms"] = "150"
        site.order("a", "hang", path="/v1/chat")
        status, _, answer = await site.chat()
        assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
        assert site.rows()["a"]["state"] == "ready"
