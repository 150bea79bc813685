"""Both tiers and simulated engines as real processes: what one address promises, end to end."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from chaos.children import ChildError
from chaos.faults.process import state
from chaos.fleet import Fleet, call, get
from chaos.history import summarize
from chaos.load import Load, LoadPlan
from chaos.topology import ClusterShape, PodShape, Topology
from gir.clock import SystemClock
from tests.support.rawhttp import Answer, ask, json_request, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]

ADAPTER = "llama-70b-sql"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
SHAPE = Topology(
    clusters=(
        ClusterShape(name="eu-1", region="eu-west", pods=(PodShape(), PodShape(dialect="sglang"))),
        ClusterShape(name="us-1", region="us-east", pods=(PodShape(adapters=(ADAPTER,)),)),
    ),
    time_scale=0.1,
    policy={"models": [{"name": "llama-70b", "aliases": ["llama"]}]},
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.start(SHAPE) as running:
        yield running


async def post(fleet: Fleet, path: str, body: Any) -> Answer:
    port = int(fleet.router_url.rpartition(":")[2])
    return await ask(port, json_request(path, body, authorization=f"Bearer {fleet.api_key}"))


def header(answer: Answer, name: bytes) -> str:
    lines = [line.partition(b": ") for line in answer.head.split(b"\r\n")[1:]]
    return next((value.decode() for key, _, value in lines if key.lower() == name), "")


def pod_url(fleet: Fleet, name: str) -> str:
    return next(pod["url"] for cluster in fleet.clusters.values() for pod in cluster.pods if pod["name"] == name)


def stats(fleet: Fleet) -> list[dict[str, Any]]:
    return [json.loads(get(f"{p['url']}/debug/stats")[1]) for c in fleet.clusters.values() for p in c.pods]


async def test_unknown_fields_and_odd_whitespace_reach_the_engine_byte_for_byte(fleet: Fleet) -> None:
    body = (
        '{ "model" : "llama-70b","zz_unknown":{"b":[1, 2.50,3e2 ],"a":null},\n "max_tokens":1,'
        '"messages":[{"role":"user","content":"\\u00e9 \u00e9 \\/"}] }'
    )
    answer = await post(fleet, "/v1/chat/completions", body)
    assert answer.status == 200
    pod = pod_url(fleet, header(answer, b"x-gir-pod"))
    assert get(f"{pod}/debug/last-request?raw=1")[1] == body.encode()


async def test_the_clients_credential_never_reaches_an_engine(fleet: Fleet) -> None:
    answer = await post(fleet, "/v1/chat/completions", {"model": "llama-70b", "messages": HELLO, "max_tokens": 1})
    shown = get(f"{pod_url(fleet, header(answer, b'x-gir-pod'))}/debug/last-request")[1].decode()
    assert fleet.api_key not in shown
    assert all(cluster.token not in shown for cluster in fleet.clusters.values())


async def test_engine_errors_pass_unchanged_and_own_errors_name_their_origin(fleet: Fleet) -> None:
    long = [{"role": "user", "content": "x" * 40_000}]
    answer = await post(fleet, "/v1/chat/completions", {"model": "llama-70b", "messages": long})
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["message"].startswith("This model's maximum context length")
    unknown = await post(fleet, "/v1/chat/completions", {"model": "nope", "messages": HELLO})
    assert unknown.status == 404
    assert json.loads(unknown.body)["error"]["message"].startswith("gir: ")


async def test_a_client_that_leaves_stops_the_engine_through_both_tiers(fleet: Fleet) -> None:
    body = {"model": "llama-70b", "messages": HELLO, "stream": True, "max_tokens": 5_000, "ignore_eos": True}
    reader, writer = await asyncio.open_connection("127.0.0.1", int(fleet.router_url.rpartition(":")[2]))
    writer.write(json_request("/v1/chat/completions", body, authorization=f"Bearer {fleet.api_key}"))
    await reader.readuntil(b"tok-0003")
    before = sum(s["aborted"] for s in stats(fleet))
    writer.close()
    await until(lambda: sum(s["aborted"] for s in stats(fleet)) == before + 1, within_s=0.5)
    assert all(s["active"] == 0 for s in stats(fleet))


async def test_a_cluster_that_dies_costs_nobody_an_error_before_the_first_token() -> None:
    with Fleet.start(SHAPE) as fleet:
        plan = LoadPlan(
            url=fleet.router_url,
            rps=20,
            duration_s=6,
            models=("llama-70b",),
            keys=(("demo", fleet.api_key),),
            output_tokens=300,
        )
        clock = SystemClock()
        load = Load(plan, clock)
        killed_s: list[float] = []

        def kill() -> None:
            fleet.kill_cluster("eu-1")
            killed_s.append(clock.monotonic_s())

        asyncio.get_running_loop().call_later(2.0, kill)
        records = await load.run()
        summary = summarize(records)
        assert summary["failed_before_token"] == 0, summary
        assert summary["lies"] == 0
        assert summary["cluster"]["eu-1"] > 0, "nothing ran on the cluster that was killed"
        broken = [r for r in records if r.failed_after_token]
        assert broken, "no stream was under way where it died"
        assert all(r.error and not r.done for r in broken)
        assert max(r.end_s for r in broken) - killed_s[0] <= 1.0
        assert max(r.sent_s for r in records if r.cluster == "eu-1") - killed_s[0] <= 1.0
        fleet.start_cluster("eu-1")
        await until(lambda: get(f"{fleet.cluster('eu-1').agent_url}/healthz")[0] == 200, within_s=20.0)


def test_stopping_leaves_no_process_and_no_file() -> None:
    fleet = Fleet.start(SHAPE)
    pids = [child.pid for child in fleet.processes]
    assert len(pids) == 5
    fleet.stop()
    fleet.stop()
    assert [state(pid) for pid in pids] == [""] * 5
    assert not fleet.directory.exists()


def test_a_fleet_that_cannot_start_says_why_and_leaves_nothing() -> None:
    wrong = Topology(clusters=SHAPE.clusters[:1], policy={"health": {"beat_interval_s": -1}})
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ChildError, match=r"(?s)router-1 ended while starting.*beat_interval_s"):
        Fleet.start(wrong)
    assert {child.pid for child in psutil.Process().children()} <= before


def test_cluster_state_can_be_read_by_scripts(fleet: Fleet) -> None:
    ready = fleet.describe()
    assert {cluster["name"] for cluster in ready["clusters"]} == {"eu-1", "us-1"}
    assert all(len(cluster["pids"]) == 2 for cluster in ready["clusters"])
    status, body = call("GET", f"{ready['admin_url']}/admin/clusters")
    assert status == 200
    assert {row["cluster"] for row in json.loads(body)["clusters"]} == {"eu-1", "us-1"}
