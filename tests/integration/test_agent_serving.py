"""Requests through the agent to simulated engines: bytes, models, adapters, credentials, reuse."""

import asyncio
import json

import openai
import pytest

from tests.support.agent_site import TOKEN, Site, engine


async def test_the_official_client_runs_unmodified() -> None:
    async with Site([engine("a"), engine("b")]) as site:
        client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{site.agent.port}/v1", api_key=TOKEN, max_retries=0)
        messages = [{"role": "user", "content": "hello"}]
        whole = await client.chat.completions.create(model="llama", messages=messages, max_tokens=3)  # type: ignore[call-overload]
        assert whole.choices[0].message.content == "tok-0001 tok-0002 tok-0003 "
        stream = await client.chat.completions.create(  # type: ignore[call-overload]
            model="llama", messages=messages, max_tokens=3, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "tok-0001 tok-0002 tok-0003 "
        assert chunks[-1].usage.completion_tokens == 3
        completion = await client.completions.create(model="llama", prompt="x", max_tokens=2)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 2
        embedding = await client.embeddings.create(model="llama", input="x")
        assert len(embedding.data[0].embedding) == 8
        assert [model.id async for model in client.models.list()] == ["llama"]
        await client.close()
        assert site.idle()


async def test_what_the_client_sent_reaches_the_engine_byte_for_byte() -> None:
    body = b'{ "model":"llama",\t"messages" : [{"role":"user","content":"\xc3\xa9"}],"max_tokens":1, "x_new":[1.50,{}]}'
    async with Site([engine("a")]) as site:
        async with site.http.post("/v1/chat/completions", data=body) as answer:
            assert answer.status == 200
            assert answer.headers["x-gir-pod"] == "a"
        sent = site.engines["a"].last_request
        assert sent is not None
        assert sent.body == body


async def test_the_callers_credentials_stay_here_and_the_pods_own_key_goes_along() -> None:
    async with Site([engine("a", api_key="engine-key")], pods={"a": {"metrics": False}}) as site:
        status, _, answer = await site.chat()
        assert status == 401, "the engine refuses whoever has not its key"
        assert "agent" not in json.dumps(answer)
    async with Site([engine("a")]) as site:
        headers = {
            "x-api-key": "mine",
            "cookie": "c=1",
            "x-gir-tenant": "t",
            "x-request-id": "r-1",
            "traceparent": "tp",
        }
        async with site.http.post("/v1/completions", json={"model": "llama", "prompt": "x"}, headers=headers):
            pass
        sent = site.engines["a"].last_request
        assert sent is not None
        names = {name for name, _ in sent.headers}
        assert {b"x-request-id", b"traceparent"} <= names
        assert not names & {b"authorization", b"x-api-key", b"cookie", b"x-gir-tenant"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code"),
    [
        ("/v1/completions", '{"model":"llama"}', {"Authorization": "Bearer wrong"}, 401, "invalid_api_key"),
        ("/v1/chat/completions", '{"model":"nope","messages":[]}', {}, 404, "model_not_found"),
        ("/nowhere", "{}", {}, 404, "not_found"),
        ("/v1/chat/completions", '{"model":', {}, 400, "invalid_json"),
        ("/v1/chat/completions", '{"model":"llama","model":"llama"}', {}, 400, None),
        ("/v1/models/nope", None, {}, 404, "model_not_found"),
        ("/v1/chat/completions", None, {}, 405, "method_not_allowed"),
        ("/v1/completions", '{"model":"llama","prompt":"x"}', {"x-gir-deadline-ms": "0"}, 504, "deadline_exceeded"),
    ],
)
async def test_refusals_are_the_agents_own_rows_of_the_error_table(
    path: str, body: str | None, headers: dict[str, str], status: int, code: str | None
) -> None:
    async with Site([engine("a")]) as site:
        async with site.http.request("POST" if body else "GET", path, data=body, headers=headers) as answer:
            assert answer.status == status
            error = (await answer.json())["error"]
        assert error["message"].startswith("agent: ")
        assert code is None or error["code"] == code
        assert site.idle()


async def test_an_engines_refusal_passes_byte_for_byte() -> None:
    async with Site([engine("a", context_tokens_max=64)]) as site:
        body = {"model": "llama", "messages": [{"role": "user", "content": "x" * 2_000}], "max_tokens": 8}
        async with site.http.post(f"{site.engines['a'].url}/v1/chat/completions", json=body) as direct:
            expected = direct.status, await direct.read()
        async with site.http.post("/v1/chat/completions", json=body) as relayed:
            assert (relayed.status, await relayed.read()) == expected
        assert expected[0] == 400
        assert site.rows()["a"]["state"] == "ready"


async def test_models_are_listed_in_the_engines_own_words() -> None:
    async with Site([engine("a", adapters=("tuned",)), engine("b", model="other")]) as site:
        await site.until(lambda: len(site.agent._scraper.cards) == 2)
        async with site.http.get("/v1/models") as answer:
            cards = {card["id"]: card for card in (await answer.json())["data"]}
        assert set(cards) == {"llama", "tuned", "other"}
        assert cards["llama"]["max_model_len"] == 8_192
        assert cards["tuned"]["parent"] == "llama"
        async with site.http.get("/v1/models/tuned") as answer:
            assert (await answer.json())["id"] == "tuned"


async def test_an_adapter_goes_where_it_is_resident() -> None:
    async with Site([engine("plain"), engine("lora", adapters=("tuned",))]) as site:
        await site.until(lambda: "tuned" in site.rows()["lora"]["adapters"])
        for _ in range(6):
            _, headers, answer = await site.chat(model="tuned")
            assert (headers["x-gir-pod"], answer["model"]) == ("lora", "tuned")


async def test_a_conversation_returns_to_the_pod_that_remembers_it() -> None:
    async with Site([engine(name) for name in "abcd"]) as site:
        pods = []
        content = "a long shared beginning " * 200
        for turn in range(5):
            _, headers, _ = await site.stream(content + f" turn {turn}", stream_options={"include_usage": True})
            pods.append(headers["x-gir-pod"])
        assert len(set(pods)) == 1
        cached = site.engines[pods[0]].driver.stats
        assert cached.completed == 5


async def test_a_server_without_metrics_is_served_by_counts_alone() -> None:
    async with Site([engine("a"), engine("b")], pods={"a": {"metrics": False}, "b": {"metrics": False}}) as site:
        answers = await asyncio.gather(*(site.chat(f"q{n}") for n in range(8)))
        assert {status for status, _, _ in answers} == {200}
        assert {headers["x-gir-pod"] for _, headers, _ in answers} == {"a", "b"}
        assert site.rows()["a"]["dialect"] is None


@pytest.mark.slow
async def test_the_gate_keeps_each_pod_at_its_cap_and_refuses_what_the_queue_cannot_hold() -> None:
    gate = {"concurrent_max_per_pod": 1, "queue_max": 1, "wait_max_s": 30.0}
    async with Site([engine("a", time_scale=0.2)], gate=gate) as site:
        running = [asyncio.ensure_future(site.chat(f"q{n}", max_tokens=30)) for n in range(2)]
        await site.until(lambda: site.agent._door.waiting(next(iter(site.agent._fleet.pools.values()))) == 1)
        async with site.http.post("/v1/completions", json={"model": "llama", "prompt": "x"}) as refused:
            assert refused.status == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert (await refused.json())["error"]["code"] == "overloaded"
        assert site.active("a") == 1
        assert {status for status, _, _ in await asyncio.gather(*running)} == {200}
        assert site.idle()


async def test_the_admin_port_explains_pods_and_choices() -> None:
    async with Site([engine("a"), engine("b")]) as site:
        await site.chat()
        base = f"http://127.0.0.1:{site.agent.admin_port}"
        async with site.http.get(f"{base}/readyz") as answer:
            assert (await answer.json())["ready"] is True
        async with site.http.get(f"{base}/admin/pods") as answer:
            assert {row["pod"] for row in (await answer.json())["pods"]} == {"a", "b"}
        async with site.http.post(f"{base}/admin/explain", data=json.dumps({"model": "llama"})) as answer:
            ranked = (await answer.json())["pods"]
            assert ranked[0]["cost_s"] <= ranked[1]["cost_s"]
        async with site.http.get(f"{base}/metrics") as answer:
            page = await answer.text()
        assert 'gir_agent_requests_total{model="llama",outcome="completed"} 1.0' in page
        assert 'gir_agent_pods{model="llama",state="ready"} 2.0' in page


async def test_the_probe_path_needs_no_credential_and_tells_whether_a_pod_is_ready() -> None:
    async with Site([engine("a")]) as site:
        async with site.http.get("/healthz", headers={"Authorization": ""}) as answer:
            assert answer.status == 200
        site.order("a", "metrics", how="missing")
        await site.until(lambda: site.rows()["a"]["state"] == "stale")
        async with site.http.get("/healthz") as answer:
            assert answer.status == 503
