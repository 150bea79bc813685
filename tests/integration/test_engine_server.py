"""The engine simulator over real sockets: shaped like the captured vLLM, exact, and quick to stop."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from chaos.engine.pod import PodConfig
from chaos.engine.server import Host, HostConfig
from gir.clock import SystemClock
from tests.support.rawhttp import Answer, ask, json_request, until

GOLDEN = Path(__file__).parent.parent / "golden" / "vllm-0.32.0"
CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"model": "llama", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    pods = (
        PodConfig(name="a", model="llama", adapters=("sql",), time_scale=0.02, adapter_load_s=0.0),
        PodConfig(name="b", model="llama", dialect="sglang", time_scale=0.02),
        PodConfig(name="c", model="llama", dialect="vllm-old", time_scale=0.02, api_key="secret"),
    )
    running = Host(HostConfig(pods=pods), SystemClock(seed=1))
    await running.start()
    yield running
    await running.stop()


async def post(host: Host, path: str, body: Any, **headers: str) -> Answer:
    return await ask(host.pods[0].server.port, json_request(path, body, **headers))


async def get(host: Host, path: str, pod: int = 0) -> Answer:
    return await ask(
        host.pods[pod].server.port, f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    )


def shape(value: Any) -> Any:
    """Keys in order and the types below them, without values."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items() if key != "prompt_tokens_details"}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return type(value).__name__


def events(raw: bytes) -> list[str]:
    return [line[6:] for line in raw.decode(errors="replace").split("\n") if line.startswith("data: ")]


@pytest.mark.parametrize(
    ("capture", "options"),
    [
        ("chat-stream", None),
        ("chat-stream-usage", {"include_usage": True}),
        ("chat-stream-continuous-usage", {"include_usage": True, "continuous_usage_stats": True}),
    ],
)
async def test_streams_have_the_captured_shape_event_by_event(
    host: Host, capture: str, options: dict[str, bool] | None
) -> None:
    body = {**HELLO, "stream": True, "max_tokens": 6} | ({"stream_options": options} if options else {})
    ours = events((await post(host, CHAT, body)).body)
    real = events((GOLDEN / f"{capture}.http").read_bytes())
    assert [json.dumps(shape(json.loads(event))) for event in ours[:-1]] == [
        json.dumps(shape(json.loads(event))) for event in real[:-1]
    ]
    assert ours[-1] == real[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("capture", "raw"),
    [
        ("error-unknown-model", json.dumps({**HELLO, "model": "nope"})),
        ("error-bad-json", "{bad"),
        ("error-context-length", json.dumps({**HELLO, "messages": [{"role": "user", "content": "x" * 40_000}]})),
    ],
)
async def test_errors_have_the_captured_wording(host: Host, capture: str, raw: str) -> None:
    answer = await post(host, CHAT, raw)
    status, _, rest = (GOLDEN / f"{capture}.http").read_bytes().partition(b"\r\n")
    expected = json.loads(rest.split(b"\r\n\r\n", 1)[1])["error"]
    ours = json.loads(answer.body)["error"]
    assert answer.status == int(status.split()[1])
    assert re.sub(r"\d+", "N", ours["message"]) == re.sub(r"\d+", "N", expected["message"]).replace(
        "tiny", "llama, sql"
    )
    assert (ours["type"], ours["param"], ours["code"]) == (expected["type"], expected["param"], expected["code"])


async def test_every_metric_family_of_the_vllm_page_exists_in_the_captured_one(host: Host) -> None:
    await post(host, CHAT, {**HELLO, "max_tokens": 3})
    ours = (await get(host, "/metrics")).body.decode()
    real = (GOLDEN / "metrics.txt").read_text()
    labels = re.compile(r"^(vllm:\w+)\{([^}]*)\}", re.MULTILINE)
    captured = {name: {pair.split("=")[0] for pair in text.split(",")} for name, text in labels.findall(real)}
    for name, text in labels.findall(ours):
        if name != "vllm:lora_requests_info":
            assert {pair.split("=")[0] for pair in text.split(",")} <= captured[name], name
    assert 'vllm:lora_requests_info{max_lora="1",running_lora_adapters="",waiting_lora_adapters=""}' in ours
    assert 'vllm:generation_tokens_total{engine="0",model_name="llama"} 3.0' in ours


async def test_other_dialects_use_their_own_names(host: Host) -> None:
    sglang, old = [(await get(host, "/metrics", pod)).body.decode() for pod in (1, 2)]
    assert "sglang:num_queue_reqs{" in sglang
    assert "vllm:" not in sglang
    assert 'vllm:gpu_cache_usage_perc{model_name="llama"}' in old
    assert "kv_cache_usage_perc" not in old


@pytest.mark.slow
async def test_the_official_openai_client_is_content(host: Host) -> None:
    async with openai.AsyncOpenAI(base_url=f"{host.pods[0].url}/v1", api_key="x", max_retries=0) as client:
        chat = await client.chat.completions.create(model="llama", messages=HELLO["messages"], max_tokens=3)
        assert chat.choices[0].message.content == "tok-0001 tok-0002 tok-0003 "
        words = [
            chunk.choices[0].delta.content
            async for chunk in await client.chat.completions.create(
                model="sql", messages=HELLO["messages"], max_tokens=2, stream=True
            )
        ]
        assert words == ["", "tok-0001 ", "tok-0002 "]
        twice = await client.completions.create(model="llama", prompt="hello", max_tokens=1, n=2)
        assert [choice.text for choice in twice.choices] == ["tok-0001 ", "tok-0001 "]
        vectors = (await client.embeddings.create(model="llama", input=["a", "b", "a"])).data
        assert vectors[0].embedding == vectors[2].embedding != vectors[1].embedding
        async with client.responses.stream(model="llama", input="hello") as stream:
            async for _ in stream:
                pass
            assert (await stream.get_final_response()).output_text.endswith("tok-0128 ")
        assert [model.id async for model in client.models.list()] == ["llama", "sql"]


@pytest.mark.slow
async def test_the_official_anthropic_client_is_content(host: Host) -> None:
    async with anthropic.AsyncAnthropic(base_url=host.pods[0].url, api_key="x", max_retries=0) as client:
        asked: dict[str, Any] = {"model": "llama", "max_tokens": 4, "messages": HELLO["messages"]}
        assert (await client.messages.create(**asked)).usage.output_tokens == 4
        async with client.messages.stream(**asked) as stream:
            assert [text async for text in stream.text_stream] == [f"tok-000{n} " for n in range(1, 5)]
            assert (await stream.get_final_message()).stop_reason == "max_tokens"


async def test_an_unfinished_answer_is_continued_in_its_numbering(host: Host) -> None:
    messages = [*HELLO["messages"], {"role": "assistant", "content": "tok-0001 tok-0002 "}]
    body = {**HELLO, "messages": messages, "max_tokens": 2}
    continued = await post(host, CHAT, {**body, "continue_final_message": True, "add_generation_prompt": False})
    assert json.loads(continued.body)["choices"][0]["message"]["content"] == "tok-0003 tok-0004 "
    fresh = await post(host, CHAT, body)
    assert json.loads(fresh.body)["choices"][0]["message"]["content"] == "tok-0001 tok-0002 "
    both = await post(host, CHAT, {**body, "continue_final_message": True})
    assert both.status == 400


async def test_stop_strings_and_token_limits_end_the_answer(host: Host) -> None:
    stopped = json.loads((await post(host, CHAT, {**HELLO, "stop": ["-0003"]})).body)["choices"][0]
    assert stopped["message"]["content"] == "tok-0001 tok-0002 tok"
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", "-0003")
    natural = json.loads((await post(host, CHAT, {**HELLO, "max_completion_tokens": 500})).body)
    assert natural["usage"]["completion_tokens"] == 128
    assert natural["choices"][0]["finish_reason"] == "stop"


async def test_a_repeated_prompt_is_read_from_the_cache(host: Host) -> None:
    body = {**HELLO, "messages": [{"role": "user", "content": "x" * 4_000}], "max_tokens": 1}
    first, second = [json.loads((await post(host, CHAT, body)).body)["usage"] for _ in range(2)]
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["prompt_tokens_details"]["cached_tokens"] >= 900


async def test_the_last_request_is_shown_byte_for_byte(host: Host) -> None:
    raw = (
        b'{"model" :"llama",  "odd":{"z":1,"a":[ ]}, "messages":[{"role":"user","content":"\xc3\xa9"}],"max_tokens":1}'
    )
    await post(host, CHAT, raw.decode())
    assert (await get(host, "/debug/last-request?raw=1")).body == raw
    shown = json.loads((await get(host, "/debug/last-request")).body)
    assert shown["target"] == CHAT
    assert ["content-type", "application/json"] in shown["headers"]


async def test_a_client_that_leaves_stops_the_engine_at_once(host: Host) -> None:
    pod = host.pods[0]
    reader, writer = await asyncio.open_connection("127.0.0.1", pod.server.port)
    writer.write(json_request(CHAT, {**HELLO, "stream": True, "max_tokens": 8_000, "ignore_eos": True}))
    await reader.readuntil(b"tok-0001")
    assert pod.driver.stats.active == 1
    writer.close()
    await until(lambda: pod.driver.stats.active == 0, within_s=0.1)
    assert pod.driver.stats.aborted == 1
    assert pod.driver.metrics().counters.cancelled == 1
    assert pod.driver.metrics().running == 0


async def test_a_wrong_key_is_refused(host: Host) -> None:
    port = host.pods[2].server.port
    assert (await ask(port, json_request(CHAT, HELLO))).status == 401
    body = {**HELLO, "max_tokens": 1}
    assert (await ask(port, json_request(CHAT, body, authorization="Bearer secret"))).status == 200


async def test_an_idle_connection_is_closed_as_uvicorn_does(host: Host) -> None:
    server = host.pods[0].server
    server.keep_alive_s = 0.05
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), 2.0)).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


async def test_scores_and_ranks_and_token_counts(host: Host) -> None:
    ranked = json.loads((await post(host, "/v1/rerank", {"query": "q", "documents": ["a", "b", "c"], "top_n": 2})).body)
    scores = [result["relevance_score"] for result in ranked["results"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 2
    scored = json.loads((await post(host, "/v1/score", {"text_1": "q", "text_2": ["a", "b"]})).body)
    assert len(scored["data"]) == 2
    assert json.loads((await post(host, "/tokenize", {"prompt": "12345678"})).body)["count"] == 2
