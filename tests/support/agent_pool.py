"""Small builders for tests of the agent's pure parts."""

from typing import Any

from gir.model.ids import ModelId, PodId
from tier1_agent.pods import Pod, PodSpec
from tier1_agent.pool import Pool, PoolSettings
from tier1_agent.scorers import PRESETS
from tier1_agent.signals import Signals

MODEL = ModelId("llama")
START_S = 1_000.0


def spec(name: str, **fields: Any) -> PodSpec:
    """A pod with eight slots, unless told otherwise."""
    given: dict[str, Any] = {"url": f"http://{name}:8000", "model": MODEL, "slots": 8, **fields}
    return PodSpec(id=PodId(name), **given)


def signals(**fields: Any) -> Signals:
    """An idle vLLM."""
    given: dict[str, Any] = {"dialect": "vllm", "waiting": 0, "running": 0, "kv_usage": 0.0, **fields}
    return Signals(**given)


def make_pool(*names: str, preset: str = "weighted", **settings: Any) -> Pool:
    """A pool of idle, freshly scraped pods at START_S."""
    weights = PRESETS[preset]  # type: ignore[index]
    pool = Pool(MODEL, PoolSettings(weights=weights, round_robin=preset == "roundrobin", **settings))
    for name in names:
        pool.add(spec(name))
    hear_all(pool, START_S)
    return pool


def hear_all(pool: Pool, now_s: float, **fields: Any) -> None:
    """Every pod is scraped and says the same."""
    for pod in list(pool.pods):
        pool.scraped(pod, signals(**fields), now_s)
    pool.tick(now_s)


def named(pool: Pool, name: str) -> Pod:
    """The pod called `name`."""
    return next(pod for pod in pool.pods if pod.spec.id == name)
