"""An engine that does not count is no reason to charge nothing: whole answers are settled by their length."""

import json

from gir.net.exchange import Exchange
from tests.support.rawhttp import ask, json_request
from tests.support.router import API_KEY, TestRouter
from tests.support.upstream import JSON, FakeCluster

SAID = "eight by" * 10


async def uncounted(exchange: Exchange) -> None:
    exchange.respond(200, JSON, json.dumps({"choices": [{"message": {"content": SAID}}]}).encode())


async def test_a_whole_answer_without_a_count_is_charged_by_its_length_and_marked() -> None:
    cluster = await FakeCluster("eu-1", uncounted).start()
    router = await TestRouter([cluster]).start()
    try:
        body = {"model": "llama", "messages": [{"role": "user", "content": "hi " * 40}]}
        answer = await ask(router.port, json_request("/v1/chat/completions", body, authorization=f"Bearer {API_KEY}"))
        assert answer.status == 200
        (row,) = router.ledger.rows()
        assert row.completion_tokens == len(SAID) // 4
        assert (row.completed, row.estimated_requests) == (1, 1)
        assert row.estimated_tokens == row.prompt_tokens + row.completion_tokens
    finally:
        await router.close()
        await cluster.close()
