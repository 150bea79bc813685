"""Every deliberate defect is noticed: by the simulation, or by the test it names."""

import importlib

import pytest

from chaos.sim.bugs import Bug, accounting, forwarding, health
from chaos.sim.run import simulate

BUGS = (*forwarding.BUGS, *health.BUGS, *accounting.BUGS)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.finding], ids=lambda bug: bug.name)
def test_the_simulation_notices(bug: Bug) -> None:
    for seed in range(bug.first, bug.first + bug.seeds):
        with bug.planted():
            found = simulate(seed, faults=bug.faults).failed
        if any(finding.startswith(bug.finding) for finding in found):
            assert not simulate(seed, faults=bug.faults).failed, "it is there without the defect, too"
            return
    pytest.fail(f"{bug.name} ({bug.what}) went unnoticed for {bug.seeds} seeds")


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.test], ids=lambda bug: bug.name)
def test_the_named_test_notices(bug: Bug) -> None:
    module, _, name = bug.test.partition(":")
    test = getattr(importlib.import_module(module), name)
    test(*bug.arguments)
    with bug.planted(), pytest.raises(AssertionError):
        test(*bug.arguments)


def test_every_defect_has_a_name_of_its_own_and_somebody_who_notices() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20
    assert all(bug.finding or bug.test for bug in BUGS)
