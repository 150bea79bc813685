"""Every fault that can be ordered, seen from the client's side of a real socket."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chaos.engine.pod import Pod, PodConfig
from chaos.engine.server import Host, HostConfig
from gir.clock import SystemClock
from tests.support.rawhttp import Answer, ask, get_request, json_request, until

CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": "llama", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    running = Host(HostConfig(pods=(PodConfig(name="a", model="llama", time_scale=0.02),)), SystemClock(seed=1))
    await running.start()
    yield running.pods[0]
    await running.stop()


async def order(pod: Pod, **fault: Any) -> None:
    answer = await ask(pod.server.port, json_request("/debug/faults", fault))
    assert answer.status == 200, answer.raw


async def chat(pod: Pod, *, stream: bool = True, within_s: float = 5.0, **fields: Any) -> Answer:
    return await ask(pod.server.port, json_request(CHAT, {**BODY, "stream": stream, **fields}), within_s=within_s)


def words(answer: Answer) -> int:
    return answer.raw.count(b"tok-0")


async def test_without_faults_an_answer_is_complete(pod: Pod) -> None:
    answer = await chat(pod)
    assert (words(answer), answer.complete, answer.ended) == (20, True, "fin")
    assert pod.driver.stats.completed == 1
    assert pod.driver.stats.tokens_delivered == 20


async def test_a_hang_sends_nothing_and_notices_the_client_leaving(pod: Pod) -> None:
    await order(pod, kind="hang", count=1)
    with pytest.raises(TimeoutError):
        await chat(pod, within_s=0.1)
    await until(lambda: pod.driver.stats.aborted == 1, within_s=0.1)
    assert (await chat(pod)).complete


async def test_a_bounded_hang_answers_late(pod: Pod) -> None:
    await order(pod, kind="hang", delay_s=0.1)
    started_s = time.perf_counter()
    assert (await chat(pod)).complete
    assert time.perf_counter() - started_s >= 0.1


async def test_a_reset_comes_before_any_byte(pod: Pod) -> None:
    await order(pod, kind="reset", count=1)
    answer = await chat(pod)
    assert (answer.raw, answer.ended) == (b"", "rst")


async def test_a_status_carries_its_retry_after(pod: Pod) -> None:
    await order(pod, kind="status", status=429, retry_after_s=7)
    answer = await chat(pod)
    assert answer.status == 429
    assert b"\r\nretry-after: 7" in answer.head
    assert json.loads(answer.body)["error"]["code"] == 429


async def test_a_held_first_token_comes_after_the_head(pod: Pod) -> None:
    await order(pod, kind="hold_first_token", delay_s=0.15)
    started_s = time.perf_counter()
    answer = await chat(pod)
    assert time.perf_counter() - started_s >= 0.15
    assert (words(answer), answer.complete) == (20, True)
    assert (await chat(pod, stream=False)).complete


@pytest.mark.parametrize(
    ("how", "ended", "framed"), [("rst", "rst", True), ("fin", "fin", False), ("truncate", "fin", True)]
)
async def test_a_cut_ends_the_stream_after_so_many_events(pod: Pod, how: str, ended: str, framed: bool) -> None:
    await order(pod, kind="cut", how=how, after_chunks=4)
    answer = await chat(pod)
    assert words(answer) == 3  # the first event carries the role
    assert (answer.ended, answer.chunked, answer.complete) == (ended, framed, False)
    assert b"[DONE]" not in answer.raw
    assert (pod.driver.stats.broken, pod.driver.stats.active) == (1, 0)
    assert pod.driver.stats.tokens_delivered == 3


async def test_a_cut_leaves_half_of_a_whole_answer(pod: Pod) -> None:
    await order(pod, kind="cut", how="fin")
    answer = await chat(pod, stream=False)
    assert answer.status == 200
    assert not answer.complete


@pytest.mark.parametrize("after", [0, 3])
async def test_an_error_inside_the_stream_is_an_event(pod: Pod, after: int) -> None:
    await order(pod, kind="error_event", after_chunks=after)
    answer = await chat(pod)
    lines = [line for line in answer.body.decode().split("\n") if line.startswith("data: ")]
    assert answer.status == 200
    assert len(lines) == after + 2
    assert json.loads(lines[after][6:])["error"]["code"] == 500


@pytest.mark.parametrize(("how", "shows"), [("utf8", b"\xff\xc3"), ("html", b"<html>"), ("empty", b": comment")])
async def test_nonsense_comes_in_the_middle(pod: Pod, how: str, shows: bytes) -> None:
    await order(pod, kind="malformed", how=how, after_chunks=2)
    answer = await chat(pod)
    assert shows in answer.body
    assert (b"[DONE]" in answer.body) == (how != "html")


async def test_a_line_without_end_is_two_mebibytes_long(pod: Pod) -> None:
    await order(pod, kind="malformed", how="long_line")
    assert len((await chat(pod)).body) > 2 * 1024 * 1024


async def test_a_slow_pod_stretches_gaps_until_relieved(pod: Pod) -> None:
    quick_s = await timed(pod)
    await order(pod, kind="slow", itl=20.0)
    assert await timed(pod) > 5 * quick_s
    await ask(pod.server.port, b"DELETE /debug/faults HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert await timed(pod) < 5 * quick_s


async def timed(pod: Pod) -> float:
    started_s = time.perf_counter()
    assert (await chat(pod)).complete
    return time.perf_counter() - started_s


@pytest.mark.parametrize(
    ("fault", "status", "shows"),
    [
        ({"how": "status", "status": 500}, 500, b""),
        ({"how": "missing"}, 404, b"Not Found"),
        ({"how": "renamed"}, 200, b"other_num_requests_running"),
        ({"how": "garbage"}, 200, b"\xff\x00"),
    ],
)
async def test_metrics_fail_in_their_own_ways(pod: Pod, fault: dict[str, Any], status: int, shows: bytes) -> None:
    await order(pod, kind="metrics", **fault)
    answer = await ask(pod.server.port, get_request("/metrics"))
    assert answer.status == status
    assert shows in answer.body
    assert b"vllm:num_requests_running" not in answer.body
    assert (await chat(pod)).complete


async def test_slow_metrics_come_late(pod: Pod) -> None:
    await order(pod, kind="metrics", how="slow", delay_s=0.1)
    started_s = time.perf_counter()
    assert (await ask(pod.server.port, get_request("/metrics"))).status == 200
    assert time.perf_counter() - started_s >= 0.1


async def test_an_unhealthy_pod_says_so(pod: Pod) -> None:
    assert (await ask(pod.server.port, get_request("/health"))).status == 200
    await order(pod, kind="unhealthy")
    assert (await ask(pod.server.port, get_request("/health"))).status == 503


async def test_a_restart_closes_the_port_and_starts_counters_anew(pod: Pod) -> None:
    await chat(pod)
    port = pod.server.port
    await order(pod, kind="restart", delay_s=0.05)
    await until(lambda: not pod.server.listening)
    with pytest.raises(OSError, match="Connect call failed"):
        await ask(port, get_request("/health"))
    await until(lambda: pod.server.listening)
    page = (await ask(port, get_request("/metrics"))).body
    assert b'vllm:generation_tokens_total{engine="0",model_name="llama"} 0.0' in page
    assert pod.driver.stats.completed == 1
    assert (await chat(pod)).complete


async def test_an_order_that_makes_no_sense_is_refused(pod: Pod) -> None:
    answer = await ask(pod.server.port, json_request("/debug/faults", {"kind": "cut", "how": "softly"}))
    assert answer.status == 400
    assert "softly" in json.loads(answer.body)["error"]["message"]
