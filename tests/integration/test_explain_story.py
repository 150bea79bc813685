"""`gir explain` on a running fleet tells the true story of a spill, a canary and a failover."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import yaml

from chaos.fleet import Fleet, get
from chaos.topology import ClusterShape, PodShape, Topology
from gir.cli.main import main
from tests.support.rawhttp import Answer, ask, json_request

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]

SHAPE = Topology(
    clusters=(
        ClusterShape(name="cheap", region="eu-west", pods=(PodShape(slots=4),)),
        ClusterShape(name="dear", region="eu-west", tier="on_demand", price_per_slot_hour=3.0, pods=(PodShape(),)),
        ClusterShape(name="lab", region="eu-west", model="llama-next", pods=(PodShape(),)),
    ),
    time_scale=0.2,
    policy={
        "tiers": [
            {"name": "reserved", "price_per_slot_hour": 1.0},
            {"name": "on_demand", "price_per_slot_hour": 3.0},
        ],
        "rewrites": [
            {
                "name": "next",
                "matches": [{"model": "llama-70b", "headers": [{"name": "x-beta", "value": "yes"}]}],
                "targets": [{"model": "llama-70b", "weight": 50}, {"model": "llama-next", "weight": 50}],
            }
        ],
    },
)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.start(SHAPE) as running:
        yield running


@pytest.fixture
async def busy(fleet: Fleet) -> AsyncIterator[None]:
    """Four long streams on the cheap cluster: all its slots."""
    body = {"stream": True, "max_tokens": 4_000, "ignore_eos": True}
    writers = []
    for _ in range(4):
        reader, writer = await asyncio.open_connection("127.0.0.1", _port(fleet))
        writer.write(_request(fleet, **body))
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"x-gir-cluster: cheap" in head or b"x-gir-cluster: dear" in head
        writers.append(writer)
    yield
    for writer in writers:
        writer.close()


def _port(fleet: Fleet) -> int:
    return int(fleet.router_url.rpartition(":")[2])


def _request(fleet: Fleet, headers: dict[str, str] | None = None, **fields: Any) -> bytes:
    body = {"model": "llama-70b", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2} | fields
    more = {"authorization": f"Bearer {fleet.api_key}"} | (headers or {})
    return json_request("/v1/chat/completions", body, **more)


def _header(answer: Answer, name: str) -> str:
    found = re.search(rf"(?im)^{name}: (.*?)\r?$", answer.head.decode())
    return found.group(1) if found else ""


async def _config(fleet: Fleet) -> dict[str, Any]:
    _, body = await asyncio.to_thread(get, f"{fleet.admin_url}/admin/config")
    return json.loads(body)


async def _explained(fleet: Fleet, capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    code = await asyncio.to_thread(main, ["explain", *argv, "--admin-url", fleet.admin_url])
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


async def test_a_spill_is_told_as_it_happened(fleet, busy, capsys):
    for _ in range(40):
        answer = await ask(_port(fleet), _request(fleet))
        if _header(answer, "x-gir-reason") == "spill":
            break
    else:
        pytest.fail(f"40 requests and no spill: {answer.head!r}")
    assert _header(answer, "x-gir-cluster") == "dear"
    told = await _explained(fleet, capsys, _header(answer, "x-request-id"))
    assert told.startswith("llama-70b -> dear (spill")
    assert re.search(r"> on_demand +\d+% of the traffic", told)
    assert re.search(r"reserved .*headroom -?\d.*spills below 15%", told)
    assert "lab  model: does not serve llama-70b" in told


async def test_a_canarys_draw_is_told_and_the_same_question_gets_the_same_answer(fleet, capsys):
    models = {}
    for number in range(20):
        headers = {"x-beta": "yes", "x-session-id": f"s-{number}"}
        answer = await ask(_port(fleet), _request(fleet, headers))
        models[number] = _header(answer, "x-gir-model")
        told = await _explained(fleet, capsys, _header(answer, "x-request-id"))
        assert re.search(rf"canary    rule=next draw=0\.\d+[<>]=?0\.5000 -> {models[number]}\n", told)
    assert set(models.values()) == {"llama-70b", "llama-next"}
    asked = ("--model", "llama-70b", "--tenant", "demo", "--session", "s-3", "--header", "x-beta=yes")
    assert f"-> {models[3]}\n" in await _explained(fleet, capsys, *asked)


async def test_a_reload_that_sends_callers_to_a_model_nobody_serves_is_refused_and_one_that_some_do_is_taken(fleet):
    path = fleet.routers[0].config_path
    good = path.read_text()
    config = yaml.safe_load(good)
    (rule,) = config["policy"]["rewrites"]

    async def reloaded(to: str, weight: int) -> dict[str, Any]:
        """The rule with another target, once the router has looked at it."""
        rule["targets"] = [{"model": "llama-70b", "weight": 100 - weight}, {"model": to, "weight": weight}]
        return await looked_at(yaml.safe_dump(config))

    async def looked_at(text: str) -> dict[str, Any]:
        before = await _config(fleet)
        path.write_text(text)
        for _ in range(100):
            await asyncio.sleep(0.1)
            after = await _config(fleet)
            if (after["version"], after["rejected"]) != (before["version"], before["rejected"]):
                return after
        pytest.fail("the file changed and nothing happened in 10 s")

    try:
        refused = await reloaded("typo", 50)
        assert "policy.rewrites[0].targets[1].model is 'typo', which no cluster serves" in refused["rejected"]
        assert refused["policy"]["rewrites"][0]["targets"][1]["model"] == "llama-next"
        answer = await ask(_port(fleet), _request(fleet, {"x-beta": "yes", "x-session-id": "s-1"}))
        assert answer.status == 200, "the old policy serves on"
        taken = await reloaded("llama-next", 60)
        assert (taken["rejected"], taken["version"]) == ("", refused["version"] + 1)
    finally:
        await looked_at(good)  # the next test finds the fleet as this one did


async def test_a_failover_is_told_attempt_by_attempt(capsys):
    with Fleet.start(SHAPE) as fleet:
        long = [{"role": "user", "content": "word " * 6_000}]

        async def keep_asking() -> Answer | None:
            for _ in range(20):
                answer = await ask(_port(fleet), _request(fleet, messages=long), within_s=20.0)
                assert answer.status == 200
                if _header(answer, "x-gir-attempts") == "2":
                    return answer
            return None

        async def kill_while_it_works() -> None:
            """Only a cluster with requests in hand can make one fail over."""
            busy = re.compile(r'gir_upstream_connections\{cluster="cheap",state="active"\} [2-9]\.')
            while True:
                _, page = await asyncio.to_thread(get, f"{fleet.admin_url}/metrics")
                if busy.search(page.decode()):
                    fleet.kill_cluster("cheap")
                    return

        answers, _ = await asyncio.gather(asyncio.gather(*[keep_asking() for _ in range(6)]), kill_while_it_works())
        moved = [answer for answer in answers if answer is not None]
        assert moved, "a cluster died under six requests and none failed over"
        assert _header(moved[0], "x-gir-reason") == "failover"
        told = await _explained(fleet, capsys, _header(moved[0], "x-request-id"))
        first, _, second = told.partition("attempt 2\n")
        assert first.startswith("attempt 1\nllama-70b -> cheap (")
        assert second.startswith("llama-70b -> dear (")
        # Whichever was noticed first: that it was tried, or that its agent is gone.
        assert re.search(r"cheap +(tried: an attempt of this request|weight: weight is 0: |state: )", second), second
