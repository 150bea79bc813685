"""The benches measure what they say: a slice of each, small enough for every run."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from tests.perf import load, mock_engine, overhead, peers, routing
from tests.perf.routing_gir import GirPicker
from tests.perf.routing_policies import Oracle, Policy, RoundRobin
from tests.perf.routing_scenarios import SCENARIOS, Scenario, mixed
from tests.perf.routing_virtual import run

CHUNKS = 5


def no_cpu() -> float:
    return 0.0


@pytest.fixture
async def engine() -> AsyncIterator[int]:
    """Port of a mock engine in this process."""
    servers = await mock_engine.start([0])
    yield servers[0].sockets[0].getsockname()[1]
    for server in servers:
        server.close()


async def ask(port: int, body: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    method = b"POST" if body else b"GET"
    writer.write(b"%b %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (method, path, len(body), body))
    answer = b""
    while not answer.endswith((b"0\r\n\r\n", b"}")):
        answer += await asyncio.wait_for(reader.read(65_536), 5.0)
    writer.close()
    return answer


@pytest.mark.parametrize("field", [b"max_tokens", b"max_completion_tokens"])
async def test_an_engine_sends_as_many_chunks_as_were_asked_for(engine: int, field: bytes) -> None:
    answer = await ask(engine, b'{"stream": true, "%b": %d}' % (field, CHUNKS))
    assert answer.count(b"data: {") == CHUNKS
    assert answer.count(b'"finish_reason":"stop"') == 1
    assert answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    # Every HTTP chunk is as long as it says.
    rest = answer.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        assert rest[int(size, 16) : int(size, 16) + 2] == b"\r\n"
        rest = rest[int(size, 16) + 2 :]


async def test_an_engine_reports_usage_when_asked(engine: int) -> None:
    asked = b'{"stream":true,"max_tokens":2,"stream_options":{"include_usage":true}}'
    assert b'"completion_tokens":2' in await ask(engine, asked)
    assert b'"object":"chat.completion"' in await ask(engine, b'{"max_tokens":2}')


@pytest.mark.slow
async def test_closed_load_counts_requests_and_chunks(engine: int) -> None:
    async with load.Load(load.chat_target(engine), connections=4) as clients:
        window = await clients.closed(warm_s=0.05, window_s=0.2, cpu=no_cpu)
    assert window.errors == 0
    assert window.requests == len(window.latency_s) > 50
    assert 0.0 < window.quantile_s(0.5) < 0.2
    target = load.chat_target(engine, stream=True, tokens_max=CHUNKS)
    async with load.Load(target, connections=4, streams=True) as clients:
        window = await clients.closed(warm_s=0.1, window_s=0.5, cpu=no_cpu)
    assert window.errors == 0
    assert window.chunks == pytest.approx(CHUNKS * window.requests, abs=CHUNKS * 4)


@pytest.mark.slow
async def test_paced_load_keeps_its_rate_and_counts_waiting(engine: int) -> None:
    async with load.Load(load.chat_target(engine), connections=2) as clients:
        window = await clients.paced(400.0, warm_s=0.1, window_s=0.5, cpu=no_cpu)
    assert window.errors == 0
    assert window.requests == pytest.approx(200, rel=0.5)


@pytest.mark.slow
async def test_errors_are_counted(engine: int) -> None:
    bad = load.chat_request(engine, prompt_bytes=10, stream=False, tokens_max=1, variant=0, system="s")
    bad = bad.replace(b"POST /v1/chat/completions", b"GET /no/such/path/of/this/engine?").partition(b"Content-Length")[
        0
    ]
    async with load.Load(load.Target("127.0.0.1", engine, [bad + b"\r\n"]), connections=2) as clients:
        window = await clients.closed(warm_s=0.0, window_s=0.1, cpu=no_cpu)
    assert window.errors == window.requests > 0


async def test_a_peer_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers.sysconfig, "get_path", lambda _: "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(peers.PeerMissingError, match="`sglang-router` is not installed; install the peers"):
        async with peers.peer("sglang_router", [1]):
            pass


def turn(cpu_us: float, added_ms: float = 0.1) -> overhead.Turn:
    return overhead.Turn(1_000.0, cpu_us, cpu_us * 2, cpu_us / 10, added_ms, added_ms * 2, 1.0, 0.0, 0)


def test_the_report_has_the_promised_shape_and_pairs_turns() -> None:
    turns = {"gir": [turn(60.0), turn(600.0)], "sglang_router": [turn(100.0), turn(1_000.0)]}
    result = overhead.report(turns, {"envoy": "not installed"}, {"gir": 9_000.4})
    assert list(result) == ["gir", "peers", "ratios", "added_latency_ms"]
    assert result["ratios"] == {
        "request_vs_sglang_router": 0.6,
        "request16k_vs_sglang_router": 0.6,
        "chunk_vs_sglang_router": 0.6,
        "request_vs_envoy": None,
    }
    assert result["peers"]["envoy"] == {"skipped": "not installed"}
    assert result["gir"]["bytes_per_open_stream"] == 9_000
    assert result["added_latency_ms"] == {"p50": 0.1, "p99": 0.2}
    assert overhead.missed(result) == []


def test_missed_bars_are_named() -> None:
    turns = {"gir": [turn(200.0, 5.0)], "sglang_router": [turn(100.0)]}
    lines = overhead.missed(overhead.report(turns, {}, {"gir": 1e6}))
    assert [line.split()[0] for line in lines] == [
        "request_vs_sglang_router", "request16k_vs_sglang_router", "chunk_vs_sglang_router", "added", "added", "an",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_every_scenario_serves_every_request_under_every_policy(name: str) -> None:
    scenario = SCENARIOS[name](120, 1)
    builders: list[Callable[[Scenario], Policy]] = [
        lambda one: GirPicker(one.pods),
        lambda one: RoundRobin(one.pods),
        lambda one: Oracle(one.pods),
    ]
    for build in builders:
        result = run(scenario, build(scenario))
        assert 0.0 < result.ttft_p50_s <= result.ttft_p95_s
        assert sum(result.share) == pytest.approx(1.0)


@pytest.mark.slow
def test_slow_pods_are_left_alone_while_fast_ones_have_room() -> None:
    scenario = mixed(600, 1)
    gir, oracle = run(scenario, GirPicker(scenario.pods)), run(scenario, Oracle(scenario.pods))
    robin = run(scenario, RoundRobin(scenario.pods))
    assert gir.ttft_p95_s <= 2.0 * oracle.ttft_p95_s
    assert gir.ttft_p95_s <= 0.2 * robin.ttft_p95_s
    assert sum(gir.share[2:]) < 0.05


def test_a_routing_bar_that_is_missed_is_named() -> None:
    good = {"ttft_p50_s": 1.0, "ttft_p95_s": 1.0, "hit_rate": 0.9, "errors": 0}
    fast = good | {"ttft_p95_s": 0.1, "hit_rate": 0.95}
    report: routing.Report = {"prefixes": {"gir": good, "sglang_router": fast, "oracle": {"skipped": "why"}}}
    lines = routing.missed(report)
    assert len(lines) == 2
    assert "ttft_p95_s against sglang_router" in lines[0]
    assert "hit rate" in lines[1]
    assert routing.missed({"prefixes": {"gir": fast, "sglang_router": good}}) == []
