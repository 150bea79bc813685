"""Engine metric pages, read for the few families that routing needs.

A page of vLLM has 650 lines and is read four times a second for each pod, so it is not parsed: each wanted family is
looked up by name and only its own lines are read. Every signal has a list of names, newest first, because engines
rename (`gpu_cache_usage_perc` became `kv_cache_usage_perc`), and a rule for several series, because one page may
speak for several data-parallel engines: counts and counters add up, shares are averaged. A page that lacks a signal its
dialect should have gives None and says so in `Signals.missing`; nothing here ever turns absence into zero.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from tier1_agent.signals import Adapters, Signals

Series = tuple[bytes, float]
"""Raw label text (without braces) and value of one series."""

_LABEL = re.compile(rb'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


def series_of(page: bytes, family: bytes) -> Iterator[Series]:
    """Series of exactly `family` in a page that starts with a newline; values that are not finite are skipped."""
    needle = b"\n" + family
    at = page.find(needle)
    while at >= 0:
        start = at + len(needle)
        end = page.find(b"\n", start)
        line = page[start:] if end < 0 else page[start:end]
        if line[:1] in (b"{", b" "):
            close = line.rfind(b"}")
            fields = line[close + 1 :].split()
            value = _number(fields[0]) if fields else None
            if value is not None:
                yield line[1:close] if close > 0 else b"", value
        at = page.find(needle, start)


def labels_of(raw: bytes) -> dict[str, str]:
    """Label names and values of one series."""
    return {name.decode(): value.decode("utf-8", "replace") for name, value in _LABEL.findall(raw)}


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _sum(values: list[float]) -> float:
    return math.fsum(values)


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values)


class Source(msgspec.Struct, frozen=True):
    """Where one number comes from: names newest first, label text every series must carry, rule for several series."""

    names: tuple[bytes, ...]
    rule: Callable[[list[float]], float] = _sum
    having: bytes = b""

    def read(self, page: bytes) -> float | None:
        """The first name that is present and not negative, combined over its series; None when none is."""
        for name in self.names:
            values = [value for raw, value in series_of(page, name) if self.having in raw]
            if values:
                combined = self.rule(values)
                return combined if combined >= 0 else None
        return None


class Dialect(msgspec.Struct, frozen=True):
    """One engine's page. `numbers` maps fields of `Signals` to sources; `expected` are those whose absence is news."""

    name: str
    marker: bytes
    """Beginning of a family name that only this engine has."""
    numbers: Mapping[str, Source]
    expected: Mapping[str, str]
    """Field of `Signals` to the name of the signal in warnings."""
    kv_tokens: Callable[[bytes], int | None] | None = None
    adapters: Callable[[bytes], Adapters | None] | None = None


_CORE = {"waiting": "waiting", "running": "running", "kv_usage": "kv_cache"}
_WITH_CAPACITY = {**_CORE, "kv_tokens_total": "kv_capacity"}
_STARTED = Source((b"process_start_time_seconds",), max)


def _vllm_kv_tokens(page: bytes) -> int | None:
    """Sum over engines of `num_gpu_blocks` x `block_size`, which old and new versions report alike."""
    tokens = 0
    for raw, _ in series_of(page, b"vllm:cache_config_info"):
        labels = labels_of(raw)
        blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
        if not (blocks.isdecimal() and size.isdecimal()):
            return None
        tokens += int(blocks) * int(size)
    return tokens or None


def _vllm_adapters(page: bytes) -> Adapters | None:
    """The newest series of each engine: the value is the time it was written, and old label sets never go away."""
    newest: dict[str, tuple[float, dict[str, str]]] = {}
    for raw, written_at in series_of(page, b"vllm:lora_requests_info"):
        labels = labels_of(raw)
        engine = labels.get("engine", "")
        if engine not in newest or written_at > newest[engine][0]:
            newest[engine] = (written_at, labels)
    if not newest:
        return None
    active: set[str] = set()
    resident_max = 0
    for _, labels in newest.values():
        for key in ("running_lora_adapters", "waiting_lora_adapters"):
            active.update(name for name in labels.get(key, "").split(",") if name.strip())
        limit = labels.get("max_lora", "")
        resident_max = max(resident_max, int(limit) if limit.isdecimal() else 0)
    return Adapters(frozenset(active), resident_max or None)


def _sglang_kv_tokens(page: bytes) -> int | None:
    tokens = Source((b"sglang:max_total_num_tokens",)).read(page)
    return int(tokens) if tokens else None


def _triton_kv_tokens(page: bytes) -> int | None:
    family = (b"nv_trt_llm_kv_cache_block_metrics",)
    per = Source(family, _mean, b'kv_cache_block_type="tokens_per"').read(page)
    blocks = Source(family, _sum, b'kv_cache_block_type="max"').read(page)
    return int(per * blocks) if per and blocks else None


def _trtllm_kv_tokens(page: bytes) -> int | None:
    per = Source((b"trtllm_kv_cache_tokens_per_block",), _mean).read(page)
    blocks = Source((b"trtllm_kv_cache_max_blocks",)).read(page)
    return int(per * blocks) if per and blocks else None


VLLM = Dialect(
    "vllm",
    b"vllm:",
    {
        "waiting": Source((b"vllm:num_requests_waiting",)),
        "running": Source((b"vllm:num_requests_running",)),
        "kv_usage": Source((b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"), _mean),
        "prompt_tokens_total": Source((b"vllm:prompt_tokens_total",)),
        "output_tokens_total": Source((b"vllm:generation_tokens_total",)),
        "cache_queries_total": Source((b"vllm:prefix_cache_queries_total", b"vllm:gpu_prefix_cache_queries_total")),
        "cache_hits_total": Source((b"vllm:prefix_cache_hits_total", b"vllm:gpu_prefix_cache_hits_total")),
        "prefill_tokens_sum": Source((b"vllm:request_prefill_kv_computed_tokens_sum",)),
        "prefill_s_sum": Source((b"vllm:request_prefill_time_seconds_sum",)),
        "token_gap_s_sum": Source((b"vllm:inter_token_latency_seconds_sum", b"vllm:time_per_output_token_seconds_sum")),
        "token_gaps": Source((b"vllm:inter_token_latency_seconds_count", b"vllm:time_per_output_token_seconds_count")),
        "ttft_s_sum": Source((b"vllm:time_to_first_token_seconds_sum",)),
        "ttfts": Source((b"vllm:time_to_first_token_seconds_count",)),
        "started_wall_s": _STARTED,
    },
    _WITH_CAPACITY,
    _vllm_kv_tokens,
    _vllm_adapters,
)

SGLANG = Dialect(
    "sglang",
    b"sglang:",
    {
        "waiting": Source((b"sglang:num_queue_reqs",)),
        "running": Source((b"sglang:num_running_reqs",)),
        "kv_usage": Source((b"sglang:token_usage",), _mean),
        "prompt_tokens_total": Source((b"sglang:prompt_tokens_total",)),
        "output_tokens_total": Source((b"sglang:generation_tokens_total",)),
        "cache_queries_total": Source((b"sglang:prompt_tokens_total",)),
        "cache_hits_total": Source((b"sglang:cached_tokens_total",)),
        "token_gap_s_sum": Source(
            (b"sglang:inter_token_latency_seconds_sum", b"sglang:time_per_output_token_seconds_sum")
        ),
        "token_gaps": Source(
            (b"sglang:inter_token_latency_seconds_count", b"sglang:time_per_output_token_seconds_count")
        ),
        "ttft_s_sum": Source((b"sglang:time_to_first_token_seconds_sum",)),
        "ttfts": Source((b"sglang:time_to_first_token_seconds_count",)),
        "started_wall_s": _STARTED,
    },
    _WITH_CAPACITY,
    _sglang_kv_tokens,
)

TGI = Dialect(
    "tgi",
    b"tgi_",
    {
        "waiting": Source((b"tgi_queue_size",)),
        "running": Source((b"tgi_batch_current_size",)),
        "prompt_tokens_total": Source((b"tgi_request_input_length_sum",)),
        "output_tokens_total": Source((b"tgi_request_generated_tokens_sum",)),
        "token_gap_s_sum": Source((b"tgi_request_mean_time_per_token_duration_sum",)),
        "token_gaps": Source((b"tgi_request_mean_time_per_token_duration_count",)),
        "started_wall_s": _STARTED,
    },
    {"waiting": "waiting", "running": "running"},
)

TRTLLM = Dialect(
    "trtllm",
    b"trtllm_",
    {
        "waiting": Source((b"trtllm_num_requests_waiting",)),
        "running": Source((b"trtllm_num_requests_running",)),
        "kv_usage": Source((b"trtllm_kv_cache_utilization",), _mean),
        "ttft_s_sum": Source((b"trtllm_time_to_first_token_seconds_sum",)),
        "ttfts": Source((b"trtllm_time_to_first_token_seconds_count",)),
        "started_wall_s": _STARTED,
    },
    _WITH_CAPACITY,
    _trtllm_kv_tokens,
)

TRITON = Dialect(
    "triton",
    b"nv_trt_llm_",
    {
        "waiting": Source((b"nv_trt_llm_request_metrics",), _sum, b'request_type="waiting"'),
        "running": Source((b"nv_trt_llm_request_metrics",), _sum, b'request_type="scheduled"'),
        "kv_usage": Source((b"nv_trt_llm_kv_cache_block_metrics",), _mean, b'kv_cache_block_type="fraction"'),
    },
    _WITH_CAPACITY,
    _triton_kv_tokens,
)

LLAMACPP = Dialect(
    "llamacpp",
    b"llamacpp:",
    {
        "waiting": Source((b"llamacpp:requests_deferred",)),
        "running": Source((b"llamacpp:requests_processing",)),
        "kv_usage": Source((b"llamacpp:kv_cache_usage_ratio",), _mean),
        "prompt_tokens_total": Source((b"llamacpp:prompt_tokens_total",)),
        "output_tokens_total": Source((b"llamacpp:tokens_predicted_total",)),
        "prefill_tokens_sum": Source((b"llamacpp:prompt_tokens_total",)),
        "prefill_s_sum": Source((b"llamacpp:prompt_seconds_total",)),
        "token_gap_s_sum": Source((b"llamacpp:tokens_predicted_seconds_total",)),
        "token_gaps": Source((b"llamacpp:tokens_predicted_total",)),
        "started_wall_s": _STARTED,
    },
    {"waiting": "waiting", "running": "running"},
)

DIALECTS = (VLLM, SGLANG, TGI, TRTLLM, TRITON, LLAMACPP)


def detect(page: bytes, *, last: Dialect | None = None) -> Dialect | None:
    """Dialect whose families stand in the page; `last` is tried first, since a pod seldom changes its engine."""
    if last is not None and b"\n" + last.marker in page:
        return last
    return next((dialect for dialect in DIALECTS if b"\n" + dialect.marker in page), None)


def read(page: bytes, *, last: Dialect | None = None) -> tuple[Signals, Dialect | None]:
    """Signals of a metrics page; an unknown engine gives a `Signals` without any, named `unknown`."""
    page = b"\n" + page
    dialect = detect(page, last=last)
    if dialect is None:
        return Signals(dialect="unknown", missing=("dialect",)), None
    values: dict[str, Any] = {field: source.read(page) for field, source in dialect.numbers.items()}
    for field in ("waiting", "running"):
        if values[field] is not None:
            values[field] = round(values[field])
    if values.get("kv_usage") is not None:
        values["kv_usage"] = min(1.0, values["kv_usage"])
    if dialect.kv_tokens is not None:
        values["kv_tokens_total"] = dialect.kv_tokens(page)
    if dialect.adapters is not None:
        values["adapters"] = dialect.adapters(page)
    missing = tuple(name for field, name in dialect.expected.items() if values.get(field) is None)
    return Signals(dialect=dialect.name, missing=missing, **values), dialect
