"""Metric pages of every engine become the same few signals; what a page lacks stays unknown and is named."""

from pathlib import Path

import pytest

from tier1_agent.dialects import DIALECTS, read, series_of
from tier1_agent.signals import Signals, restarted

GOLDEN = Path(__file__).parents[1] / "golden" / "vllm-0.32.0" / "metrics.txt"


def signals_of(page: str) -> Signals:
    return read(page.encode())[0]


def test_a_real_vllm_page_gives_every_signal() -> None:
    found = read(GOLDEN.read_bytes())[0]
    assert found.dialect == "vllm"
    assert (found.running, found.waiting, found.kv_usage) == (0, 0, 0.0)
    assert found.kv_tokens_total == 8_192 * 128
    assert found.prompt_tokens_total == 433.0
    assert found.output_tokens_total == 54.0
    assert (found.cache_queries_total, found.cache_hits_total) == (433.0, 0.0)
    assert found.prefill_tokens_sum == 433.0
    assert found.prefill_s_sum == pytest.approx(0.0736, abs=1e-4)
    assert (found.token_gaps, found.ttfts) == (46.0, 8.0)
    assert found.started_wall_s == pytest.approx(1_795_983_298.46)
    assert found.missing == ()


def test_the_old_name_of_vllm_kv_usage_is_read_too() -> None:
    page = GOLDEN.read_bytes().replace(b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc")
    page = page.replace(b'gpu_cache_usage_perc{engine="0",model_name="tiny"} 0.0', b"gpu_cache_usage_perc 0.4")
    found = read(page)[0]
    assert found.kv_usage == 0.4
    assert found.missing == ()


def test_a_renamed_signal_is_unknown_and_named_instead_of_zero() -> None:
    found = read(GOLDEN.read_bytes().replace(b"vllm:kv_cache_usage_perc", b"vllm:kv_usage_v9"))[0]
    assert found.kv_usage is None
    assert found.missing == ("kv_cache",)


def test_series_of_several_engines_are_summed_or_averaged() -> None:
    found = signals_of(
        'vllm:num_requests_waiting{engine="0"} 3\n'
        'vllm:num_requests_waiting{engine="1"} 4\n'
        'vllm:num_requests_running{engine="0"} 10\n'
        'vllm:num_requests_running{engine="1"} 20\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.6\n'
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0\n'
        'vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="50"} 1.0\n'
    )
    assert (found.waiting, found.running) == (7, 30)
    assert found.kv_usage == pytest.approx(0.4)
    assert found.kv_tokens_total == 2_400


def test_the_newest_lora_series_of_each_engine_counts() -> None:
    found = signals_of(
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 100.0\n'
        'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a,b",waiting_lora_adapters="c"} 200.0\n'
    )
    assert found.adapters is not None
    assert found.adapters.active == {"a", "b", "c"}
    assert found.adapters.resident_max == 4


def test_an_unknown_block_count_leaves_capacity_unknown() -> None:
    found = signals_of('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n')
    assert found.kv_tokens_total is None
    assert "kv_capacity" in found.missing


PAGES = {
    "sglang": (
        'sglang:num_running_reqs{model_name="m"} 5.0\nsglang:num_queue_reqs{model_name="m"} 2.0\n'
        'sglang:token_usage{model_name="m"} 0.28\nsglang:max_total_num_tokens{model_name="m"} 4096.0\n'
    ),
    "tgi": "tgi_queue_size 2\ntgi_batch_current_size 5\n",
    "trtllm": (
        "trtllm_num_requests_waiting 2\ntrtllm_num_requests_running 5\ntrtllm_kv_cache_utilization 0.28\n"
        "trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_max_blocks 128\n"
    ),
    "triton": (
        'nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 2\n'
        'nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 5\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.28\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 32\n'
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 128\n'
    ),
    "llamacpp": "llamacpp:requests_processing 5\nllamacpp:requests_deferred 2\nllamacpp:kv_cache_usage_ratio 0.28\n",
}


@pytest.mark.parametrize("name", PAGES)
def test_each_engine_is_recognised_by_its_families(name: str) -> None:
    found, dialect = read(b"# HELP something else\nprocess_open_fds 3\n" + PAGES[name].encode())
    assert dialect is not None
    assert found.dialect == dialect.name == name
    assert (found.running, found.waiting) == (5, 2)
    assert found.missing == ()
    if name not in {"tgi", "llamacpp"}:
        assert (found.kv_usage, found.kv_tokens_total) == (0.28, 4_096)


def test_an_engine_nobody_knows_tells_nothing_and_says_so() -> None:
    found, dialect = read(b"my_engine_queue 3\n")
    assert dialect is None
    assert (found.waiting, found.running, found.missing) == (None, None, ("dialect",))


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "garbage", ""])
def test_values_that_mean_nothing_are_unknown(value: str) -> None:
    found = signals_of(f"vllm:num_requests_waiting {value}\nvllm:num_requests_running 1\n")
    assert found.waiting is None
    assert found.running == 1
    assert "waiting" in found.missing


def test_only_the_family_itself_is_read_not_its_longer_cousins() -> None:
    page = b'\nvllm:num_requests_waiting_by_reason{reason="capacity"} 9\nvllm:num_requests_waiting 1 1795983298000\n'
    assert list(series_of(page, b"vllm:num_requests_waiting")) == [(b"", 1.0)]


def test_braces_and_spaces_inside_a_label_do_not_end_it() -> None:
    page = b'\nvllm:num_requests_waiting{model_name="a } b"} 4\n'
    assert [value for _, value in series_of(page, b"vllm:num_requests_waiting")] == [4.0]


def test_the_dialect_of_last_time_is_tried_first_and_given_up_when_gone() -> None:
    vllm, sglang = DIALECTS[0], DIALECTS[1]
    assert read(PAGES["sglang"].encode(), last=vllm)[1] is sglang


def test_a_restart_shows_in_the_start_time_or_in_a_counter_that_fell() -> None:
    before = Signals(dialect="vllm", prompt_tokens_total=100.0, started_wall_s=5_000.0)
    assert restarted(before, Signals(dialect="vllm", prompt_tokens_total=100.0, started_wall_s=5_060.0))
    assert restarted(before, Signals(dialect="vllm", prompt_tokens_total=7.0))
    assert not restarted(before, Signals(dialect="vllm", prompt_tokens_total=101.0, started_wall_s=5_000.2))
    assert not restarted(before, Signals(dialect="vllm"))
