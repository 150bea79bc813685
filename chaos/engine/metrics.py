"""`/metrics` as real engines write it: current vLLM, old vLLM, SGLang.

Names and labels of the vLLM page follow a capture of a real server (`tests/golden`). Only families that a router could
use are here.
"""

import bisect
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from chaos.engine.core import EngineMetrics

Dialect = Literal["vllm", "vllm-old", "sglang"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)


class Histogram:
    """Counts by upper bound, cumulative when written."""

    __slots__ = ("counts", "sum", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.sum = 0.0
        self.total = 0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count `times` observations of the same value."""
        self.counts[bisect.bisect_left(SECONDS, seconds)] += times
        self.sum += seconds * times
        self.total += times


class Observed:
    """What the server measured of its requests."""

    __slots__ = ("e2e", "ends", "inter_token", "ttft")

    def __init__(self) -> None:
        self.ttft = Histogram()
        self.inter_token = Histogram()
        self.e2e = Histogram()
        self.ends = {"stop": 0, "length": 0, "abort": 0, "error": 0}


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What never changes while the engine runs."""

    model: str
    adapter_slots: int
    block_tokens: int
    kv_blocks: int


class _Page:
    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._lines: list[str] = []

    def family(self, name: str, kind: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> None:
        self._lines += [f"# HELP {name} {name}", f"# TYPE {name} {kind}"]
        self._lines += [f"{name}{self._label_text(labels)} {float(value)}" for labels, value in samples]

    def one(self, name: str, kind: str, value: float) -> None:
        self.family(name, kind, [({}, value)])

    def info(self, name: str, labels: Mapping[str, str], value: float) -> None:
        """A family that carries its own labels only."""
        pairs = ",".join(f'{label}="{text}"' for label, text in sorted(labels.items()))
        self._lines += [f"# HELP {name} {name}", f"# TYPE {name} gauge", f"{name}{{{pairs}}} {float(value)}"]

    def histogram(self, name: str, data: Histogram) -> None:
        self._lines += [f"# HELP {name} {name}", f"# TYPE {name} histogram"]
        running = 0
        for bound, count in zip((*SECONDS, "+Inf"), data.counts, strict=True):
            running += count
            self._lines.append(f"{name}_bucket{self._label_text({'le': str(bound)})} {float(running)}")
        self._lines.append(f"{name}_count{self._label_text({})} {float(data.total)}")
        self._lines.append(f"{name}_sum{self._label_text({})} {data.sum}")

    def _label_text(self, extra: Mapping[str, str]) -> str:
        pairs = sorted({**self._labels, **extra}.items())
        return "{" + ",".join(f'{name}="{value}"' for name, value in pairs) + "}" if pairs else ""

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def render(dialect: Dialect, facts: Facts, state: EngineMetrics, observed: Observed, now_wall_s: float) -> str:
    """The whole page."""
    if dialect == "sglang":
        return _sglang(facts, state, observed)
    return _vllm(facts, state, observed, now_wall_s, old=dialect == "vllm-old")


def _vllm(facts: Facts, state: EngineMetrics, observed: Observed, now_wall_s: float, *, old: bool) -> str:
    labels = {"model_name": facts.model} if old else {"engine": "0", "model_name": facts.model}
    page = _Page(labels)
    counters = state.counters
    page.one("vllm:num_requests_running", "gauge", state.running)
    page.one("vllm:num_requests_waiting", "gauge", state.waiting)
    page.one("vllm:gpu_cache_usage_perc" if old else "vllm:kv_cache_usage_perc", "gauge", state.kv_usage)
    prefix = "vllm:gpu_prefix_cache" if old else "vllm:prefix_cache"
    page.one(f"{prefix}_queries_total", "counter", counters.prompt_tokens)
    page.one(f"{prefix}_hits_total", "counter", counters.cached_tokens)
    page.one("vllm:num_preemptions_total", "counter", counters.preempted)
    page.one("vllm:prompt_tokens_total", "counter", counters.prompt_tokens)
    page.one("vllm:generation_tokens_total", "counter", counters.generated_tokens)
    ends = [({"finished_reason": reason}, count) for reason, count in observed.ends.items()]
    page.family("vllm:request_success_total", "counter", ends)
    page.histogram("vllm:time_to_first_token_seconds", observed.ttft)
    gaps = "vllm:time_per_output_token_seconds" if old else "vllm:inter_token_latency_seconds"
    page.histogram(gaps, observed.inter_token)
    page.histogram("vllm:e2e_request_latency_seconds", observed.e2e)
    if facts.adapter_slots:
        lora = {
            "max_lora": str(facts.adapter_slots),
            "running_lora_adapters": ",".join(state.adapters_running),
            "waiting_lora_adapters": ",".join(state.adapters_waiting),
        }
        page.info("vllm:lora_requests_info", lora, now_wall_s)
    config = {"block_size": str(facts.block_tokens), "num_gpu_blocks": str(facts.kv_blocks)}
    page.info("vllm:cache_config_info", config if old else {**config, "engine": "0"}, 1.0)
    return page.text()


def _sglang(facts: Facts, state: EngineMetrics, observed: Observed) -> str:
    page = _Page({"engine_type": "unified", "model_name": facts.model, "pp_rank": "0", "tp_rank": "0"})
    counters = state.counters
    page.one("sglang:num_running_reqs", "gauge", state.running)
    page.one("sglang:num_queue_reqs", "gauge", state.waiting)
    page.one("sglang:token_usage", "gauge", state.kv_usage)
    page.one("sglang:num_used_tokens", "gauge", state.kv_blocks_used * facts.block_tokens)
    page.one("sglang:max_total_num_tokens", "gauge", facts.kv_blocks * facts.block_tokens)
    share = counters.cached_tokens / counters.prompt_tokens if counters.prompt_tokens else 0.0
    page.one("sglang:cache_hit_rate", "gauge", share)
    page.one("sglang:prompt_tokens_total", "counter", counters.prompt_tokens)
    page.one("sglang:cached_tokens_total", "counter", counters.cached_tokens)
    page.one("sglang:generation_tokens_total", "counter", counters.generated_tokens)
    page.one("sglang:num_requests_total", "counter", counters.finished)
    page.one("sglang:num_aborted_requests_total", "counter", counters.cancelled)
    page.histogram("sglang:time_to_first_token_seconds", observed.ttft)
    page.histogram("sglang:inter_token_latency_seconds", observed.inter_token)
    page.histogram("sglang:e2e_request_latency_seconds", observed.e2e)
    page.info(
        "sglang:cache_config_info", {"page_size": str(facts.block_tokens), "num_pages": str(facts.kv_blocks)}, 1.0
    )
    return page.text()
