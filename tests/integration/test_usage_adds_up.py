"""The ledger of the fleet holds what the engines generated: two routers, two clusters, every API, one Redis."""

import json
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from chaos.fleet import Fleet
from chaos.topology import ClusterShape, PodShape, Topology
from tests.support.redis_server import redis_server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]
MODEL = "llama-70b"
ASK = [{"role": "user", "content": "how much is it?"}]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with redis_server() as redis:
        topology = Topology(
            clusters=(
                ClusterShape(name="eu", region="eu-west", pods=(PodShape(), PodShape())),
                ClusterShape(name="us", region="us-east", pods=(PodShape(dialect="sglang"),)),
            ),
            routers=2,
            time_scale=0.05,
            policy={
                "tiers": [{"name": "reserved", "price_per_slot_hour": 1.0}],
                "limits": [{"name": "all", "tokens_per_min": 1_000_000, "per": []}],
            },
            router={
                "store": {"kind": "redis", "url": {"value": redis.url}},
                "drain": {"listen_s": 0, "finish_s": 5},
            },
        )
        with Fleet.start(topology) as running:
            yield running


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        return answer.read().decode()


def generated(fleet: Fleet) -> tuple[int, int]:
    """Prompt and generated tokens, as the engines' own counters say."""
    prompt = output = 0.0
    for cluster in fleet.clusters.values():
        for pod in cluster.pods:
            for line in fetch(f"{pod['url']}/metrics").splitlines():
                name, labelled, value = line.partition("{")
                if labelled and name.endswith(":prompt_tokens_total"):
                    prompt += float(value.rpartition(" ")[2])
                elif labelled and name.endswith(":generation_tokens_total"):
                    output += float(value.rpartition(" ")[2])
    return int(prompt), int(output)


def use_every_api(url: str, key: str) -> int:
    """Some of each; how many requests that were."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        for stream in (False, True):
            chat = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=7, stream=stream)  # type: ignore[call-overload]
            text = client.completions.create(model=MODEL, prompt="once", max_tokens=4, stream=stream)
            made = client.responses.create(model=MODEL, input="tell", max_output_tokens=6, stream=stream)
            if stream:
                assert min(len(list(events)) for events in (chat, text, made))
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        assert list(client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, **asked))  # type: ignore[call-overload]
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="absent", messages=ASK)  # type: ignore[arg-type]
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as client:
        for stream in (False, True):
            said = client.messages.create(model=MODEL, messages=ASK, max_tokens=8, stream=stream)  # type: ignore[call-overload]
            if stream:
                assert list(said)
    return 10


def until(ask: Callable[[], Any], good: Callable[[Any], bool], within_s: float = 15.0) -> Any:
    """The first good answer, or the last one."""
    ends_s = time.perf_counter() + within_s
    while not good(answer := ask()) and time.perf_counter() < ends_s:
        time.sleep(0.1)
    return answer


def test_the_ledger_holds_what_the_engines_generated_and_outlives_a_router(fleet: Fleet) -> None:
    requests = sum(use_every_api(router.url, fleet.api_key) for router in fleet.routers for _ in range(3))
    first, second = fleet.routers
    assert second.process is not None
    second.process.signal(signal.SIGTERM)
    usage = until(
        lambda: json.loads(fetch(f"{first.admin_url}/admin/usage?scope=fleet&by=tenant")),
        lambda answer: answer["rows"][0]["requests"] == requests,
    )
    (row,) = usage["rows"]
    assert (row["tenant"], row["requests"], row["rejected"], row["estimated_requests"]) == ("demo", requests, 6, 0)
    assert (row["prompt_tokens"], row["completion_tokens"]) == generated(fleet)
    assert sorted(one["replica"].split("#")[0] for one in usage["replicas"]) == ["router-1", "router-2"]
    charged = row["prompt_tokens"] + row["completion_tokens"]
    limits = until(
        lambda: json.loads(fetch(f"{first.admin_url}/admin/limits")),
        lambda answer: 1_000_000 - answer["counters"][0]["remaining"] == charged,
    )
    assert 1_000_000 - limits["counters"][0]["remaining"] == charged, "limits have been charged the same"
