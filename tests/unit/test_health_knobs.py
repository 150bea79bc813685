"""Every knob of the health policy changes what happens, and is explained to operators with its default."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gir.health.ladder import rungs
from gir.model.outcome import AttemptResult
from gir.model.policy import HealthPolicy
from tests.support.fleet import Fleet

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
Scenario = Callable[[HealthPolicy], object]


def ladder(policy: HealthPolicy) -> object:
    return rungs(policy)


def silent_beats(policy: HealthPolicy) -> object:
    """One of three falls silent while its data path works."""
    fleet = Fleet("a", "b", "c", health=policy)
    fleet.run(30.0)
    fleet.clusters["b"].beating = False
    fleet.run(20.0)
    return fleet.statuses("b"), [round(weight, 2) for _, weight in fleet.weights["b"]]


def missed_probes(policy: HealthPolicy) -> object:
    fleet = Fleet("a", "b", "c", health=policy)
    fleet.run(30.0)
    fleet.clusters["b"].probe = "miss"
    fleet.run(1.5)
    return fleet.statuses("b")


def failing(results: str, after_s: float = 0.0) -> Scenario:
    """Attempts end well (.), in a local fault (l) or an upstream one (u); then time passes."""
    names = {".": AttemptResult.OK, "l": AttemptResult.LOCAL_FAULT, "u": AttemptResult.UPSTREAM_FAULT}

    def scenario(policy: HealthPolicy) -> object:
        fleet = Fleet("a", "b", health=policy)
        fleet.run(30.0)
        for result in results:
            if result == " ":
                fleet.run(3.0)
            else:
                fleet.attempts("b", names[result])
        fleet.run(after_s)
        return fleet.line()

    return scenario


def failed_probations(policy: HealthPolicy) -> object:
    """Five ejections in a row."""
    fleet = Fleet("a", "b", health=policy)
    fleet.run(30.0)
    fleet.attempts("b", AttemptResult.LOCAL_FAULT, policy.breaker_consecutive)
    for _ in range(4):
        while not fleet.state("b").probation:
            fleet.run(0.5)
        fleet.attempts("b", AttemptResult.LOCAL_FAULT)
    return round(fleet.state("b").backoff_until_s - fleet.now_s, 1)


def way_back(policy: HealthPolicy) -> object:
    """Frozen twice, thawed twice: the weights on the way back."""
    fleet = Fleet("a", "b", "c", health=policy)
    fleet.run(30.0)
    for _ in range(4):
        fleet.freeze("b")
        fleet.run(8.0)
        fleet.thaw("b")
        fleet.run(42.0)
    return [weight for _, weight in fleet.weights["b"]]


def region_lost(policy: HealthPolicy) -> object:
    fleet = Fleet("a", "b", "c", health=policy)
    fleet.run(30.0)
    fleet.freeze("b", "c")
    fleet.run(30.0)
    return fleet.line()


def short_stall(policy: HealthPolicy) -> object:
    fleet = Fleet("a", "b", "c", health=policy)
    fleet.run(30.0)
    fleet.pause(2.0)
    fleet.registry.stream_lost(fleet.clusters["b"].id, 1, fleet.now_s)
    return fleet.state("b").status


KNOBS: dict[str, tuple[Any, Scenario]] = {
    "failover_bound_s": (20.0, region_lost),
    "beat_interval_s": (1.0, silent_beats),
    "suspect_after_s": (5.0, silent_beats),
    "dead_after_s": (10.0, silent_beats),
    "sweep_interval_s": (1.0, ladder),
    "probe": (False, ladder),
    "probe_interval_s": (2.0, ladder),
    "probe_timeout_s": (0.25, ladder),
    "probe_misses": (2, missed_probes),
    "breaker_consecutive": (2, failing("ll")),
    "breaker_upstream_consecutive": (3, failing("uuu")),
    "breaker_window_s": (3.0, failing(".ll.ll .ll.ll")),
    "breaker_samples_min": (5, failing(".ll.ll")),
    "breaker_success_min": (0.7, failing(".l.l.l.l.l.l")),
    "ejection_s": (5.0, failing("lll", after_s=6.0)),
    "ejection_max_s": (30.0, failed_probations),
    "recover_beats": (4, way_back),
    "recover_probes": (6, way_back),
    "ramp_s": (10.0, way_back),
    "ramp_floor": (0.3, way_back),
    "ramp_aggression": (2.0, way_back),
    "holddown_s": (5.0, way_back),
    "holddown_max_s": (3.0, way_back),
    "flap_window_s": (5.0, way_back),
    "loop_gap_s": (3.0, short_stall),
    "mass_ejection_share": (0.9, region_lost),
}


def test_no_knob_is_forgotten() -> None:
    assert set(KNOBS) == set(HealthPolicy.__struct_fields__)


@pytest.mark.parametrize("name", KNOBS)
def test_the_knob_changes_what_happens(name: str) -> None:
    value, scenario = KNOBS[name]
    policy = HealthPolicy()
    assert scenario(msgspec.structs.replace(policy, **{name: value})) != scenario(policy)


@pytest.mark.parametrize("name", HealthPolicy.__struct_fields__)
def test_the_knob_is_explained_with_its_default(name: str) -> None:
    row = re.search(rf"^\| `{name}` \| ([^|]+) \| [^|]{{10,}} \|", OPERATIONS.read_text(), re.MULTILINE)
    assert row, f"docs/operations.md has no row for {name}"
    default = getattr(HealthPolicy(), name)
    assert row[1].strip() == (str(default).lower() if isinstance(default, bool) else f"{default:g}")
