"""The load client against a simulated engine: it sees exactly what the engine did."""

from collections.abc import AsyncIterator

import pytest

from chaos.engine.faults import Fault
from chaos.engine.pod import Pod, PodConfig
from chaos.engine.server import Host, HostConfig
from chaos.history import Record, summarize
from chaos.load import Load, LoadPlan
from gir.clock import SystemClock

pytestmark = pytest.mark.slow


@pytest.fixture
async def pod() -> AsyncIterator[Pod]:
    running = Host(HostConfig(pods=(PodConfig(name="a", model="llama", time_scale=0.02),)), SystemClock(seed=1))
    await running.start()
    yield running.pods[0]
    await running.stop()


async def run(pod: Pod, **changes: object) -> list[Record]:
    plan = LoadPlan(url=pod.url, rps=60, duration_s=0.5, models=("llama",), output_tokens=8, **changes)  # type: ignore[arg-type]
    return await Load(plan, SystemClock()).run()


async def test_every_request_is_whole_and_counted_on_both_sides(pod: Pod) -> None:
    records = await run(pod)
    assert len(records) >= 15
    assert all(record.ok and not record.lie for record in records)
    assert sum(record.tokens for record in records) == pod.driver.stats.tokens_delivered
    assert {record.stream for record in records} == {True, False}
    assert len(pod.server.connections) == 0 or pod.driver.stats.requests > len(pod.server.connections)


async def test_cuts_and_errors_are_told_apart(pod: Pod) -> None:
    pod.order(Fault(kind="cut", how="rst", after_chunks=3, count=3))
    pod.order(Fault(kind="status", status=503, retry_after_s=1, count=4))
    pod.order(Fault(kind="reset", count=2))
    summary = summarize(await run(pod, stream_share=1.0))
    assert summary["failed_after_token"] == 3
    assert summary["failed_before_token"] == 6
    assert summary["errors"] == {"503": 4, "reset": 5}
    assert summary["lies"] == 0


async def test_a_hanging_server_is_given_up_on(pod: Pod) -> None:
    pod.order(Fault(kind="hang"))
    records = await run(pod, within_s=0.2)
    assert {record.ended for record in records} == {"timeout"}
    assert all(0.2 <= record.end_s - record.sent_s < 0.5 for record in records)


async def test_beyond_the_bound_requests_are_recorded_as_skipped(pod: Pod) -> None:
    pod.order(Fault(kind="hang"))
    records = await run(pod, within_s=1.0, in_flight_max=5)
    assert sum(record.ended == "timeout" for record in records) == 5
    assert summarize(records)["skipped"] == len(records) - 5


async def test_an_address_nobody_listens_on_is_refused() -> None:
    plan = LoadPlan(url="http://127.0.0.1:9", rps=50, duration_s=0.1, models=("llama",), poisson=False)
    records = await Load(plan, SystemClock()).run()
    assert {record.ended for record in records} == {"refused"}
    with pytest.raises(ValueError, match="http://host:port"):
        Load(LoadPlan(url="ftp://x", rps=1, duration_s=1, models=("m",)), SystemClock())
