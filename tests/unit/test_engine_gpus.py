"""The fitted lines stay near what was measured."""

import pytest

from chaos.engine.gpus import FIT_TOKENS_MAX, Measurement, measurements, profile, profiles


def test_prefill_is_within_forty_percent_of_every_measurement_in_range() -> None:
    for row in measurements():
        tokens = row.prompt_tokens * row.batch
        if tokens <= FIT_TOKENS_MAX:
            fitted_ms = profile(row.profile_name).step_s(tokens, 0) * 1e3
            assert fitted_ms == pytest.approx(row.prefill_ms, rel=0.40), row


def test_decode_is_within_eight_percent_of_every_measurement_at_512_tokens() -> None:
    for row in measurements():
        if row.prompt_tokens == 512:
            fitted_ms = profile(row.profile_name).step_s(0, row.batch) * 1e3
            assert fitted_ms == pytest.approx(row.token_ms, rel=0.08), row


def test_every_model_and_gpu_of_the_table_has_a_profile() -> None:
    assert set(profiles()) == {row.profile_name for row in measurements()}
    assert len(profiles()) == 12


def test_a_newer_gpu_prefills_at_least_twice_as_fast() -> None:
    old, new = profile("llama2-70b/a100-80gb/tp8"), profile("llama2-70b/h100-80gb/tp8")
    assert new.prefill_tokens_per_s > 2 * old.prefill_tokens_per_s


def test_an_empty_step_takes_no_time_and_a_tiny_prefill_takes_the_floor() -> None:
    gpu = profile("llama2-70b/h100-80gb/tp8")
    assert gpu.step_s(0, 0) == 0
    assert gpu.step_s(1, 0) == gpu.prefill_floor_s


def test_scaling_multiplies_prefill_and_decode_separately() -> None:
    gpu = profile("llama2-70b/h100-80gb/tp8")
    slow = gpu.scaled(prefill=7.0, name="slow")
    assert slow.name == "slow"
    assert slow.step_s(4_096, 0) == pytest.approx(7 * gpu.step_s(4_096, 0))
    assert slow.step_s(0, 8) == gpu.step_s(0, 8)


def test_an_unknown_profile_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ValueError, match=r"gpu is 'b200'.*llama2-70b/h100-80gb/tp8"):
        profile("b200")


def test_a_measurement_names_its_profile() -> None:
    assert Measurement("m", "g", 4, 512, 1, 10.0, 2.0).profile_name == "m/g/tp4"
