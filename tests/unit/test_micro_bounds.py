"""The small calls of a request stay small: three times the bar, for machines that are busy with other things."""

import pytest

from tests.perf import micro

SLACK = 3.0


@pytest.mark.slow
@pytest.mark.parametrize("pods", [16, 256])
def test_one_pick_is_cheap(pods: int) -> None:
    assert micro.pick_us(pods, calls=300) < SLACK * micro.BARS_US[f"pick_{pods}_pods"]


@pytest.mark.slow
def test_one_plan_is_cheap() -> None:
    assert micro.plan_us(16, calls=300) < SLACK * micro.BARS_US["plan_16_clusters"]


@pytest.mark.slow
def test_a_plan_over_a_thousand_clusters_costs_little_more_than_one_over_sixteen() -> None:
    assert micro.plan_us(1_000, calls=200) < 20.0 * micro.plan_us(16, calls=200)


@pytest.mark.slow
def test_a_known_credential_is_a_look_up_and_a_new_token_one_verification() -> None:
    figures = micro.credentials_us()
    assert figures["api_key"] < 5.0
    assert figures["token_cached"] < 5.0
    assert figures["token_first_time"] < 1_000.0


@pytest.mark.slow
@pytest.mark.parametrize("module", ["gir.app", "tier1_agent.app"])
def test_imports_do_not_keep_anybody_waiting(module: str) -> None:
    assert micro.import_s(module) < SLACK * micro.IMPORT_BAR_S
