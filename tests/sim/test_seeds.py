"""Fixed seeds, so that what once held still holds, and fresh ones, so that every run looks where none has looked."""

import secrets

import pytest

from chaos.sim.run import simulate

FIXED, CHUNK = 200, 20
FRESH, FRESH_CHUNKS = 50, 5


def findings(seeds: range | list[int]) -> list[str]:
    found = []
    for seed in seeds:
        result = simulate(seed)
        found += [f"{finding}\n    again: gir-chaos sim --seeds {seed} --trace" for finding in result.failed]
        assert result.outcomes.get("completed", 0) > 0, f"seed {seed} served nobody, so it proves nothing"
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, FIXED + 1, CHUNK))
def test_fixed_seeds_find_nothing(first: int) -> None:
    found = findings(range(first, first + CHUNK))
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("_", range(FRESH_CHUNKS))
def test_fresh_seeds_find_nothing(_: int) -> None:
    found = findings([1_000_000 + secrets.randbelow(2**40) for _ in range(FRESH // FRESH_CHUNKS)])
    assert not found, "\n".join(found)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_thousand_more_seeds_find_nothing() -> None:
    found = findings(range(10_001, 11_001))
    assert not found, "\n".join(found)


@pytest.mark.full
def test_ten_clusters_live_five_thousand_times_as_fast_as_life() -> None:
    results = [simulate(seed, clusters=10) for seed in range(1, 31)]
    speedup = sum(result.simulated_s for result in results) / sum(result.cpu_s for result in results)
    assert speedup >= 5_000, f"{speedup:.0f}x"
