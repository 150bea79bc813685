"""A proposed policy is tried on a recorded trace beside the one in force."""

import json
from itertools import pairwise

import pytest

from chaos.cli import main
from chaos.replay.policies import Gir, LeastLoad, PrefixOnly, RegionLocal
from chaos.replay.traces import conversation, day_rates, diurnal, reuse_ceiling
from chaos.replay.world import World
from chaos.whatif import FLEET, _spec
from gir.model.policy import PolicySnapshot

TIERED = """
policy:
  tiers:
    - {name: reserved, price_per_slot_hour: 1.0}
    - {name: on_demand, price_per_slot_hour: 3.0}
"""
BLIND = "clusters:\n" + "".join(f"  - {{id: {each.id}, tier: any}}\n" for each in FLEET.clusters)


@pytest.mark.slow
def test_cost_latency_and_spill_of_both_policies_are_told(tmp_path, capsys):
    new, old = tmp_path / "new.yaml", tmp_path / "old.yaml"
    new.write_text(TIERED)
    old.write_text(BLIND)
    argv = ["sim", "--policy", str(new), "--current", str(old), "--trace", "day", "--limit", "1500", "--speed", "4"]
    assert main([*argv, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    current, proposed = told["policies"]["current"], told["policies"]["proposed"]
    assert told["requests"] == 1_500
    assert proposed["cost"] < current["cost"]
    assert proposed["tier_share"]["reserved"] > current["tier_share"]["reserved"]
    assert current["spill_share"] == 0.0
    assert main(argv) == 0
    assert "share of on_demand" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: {tiers: [{name: spot}]}", "price_per_slot_hour"),
        ("policy: {tiers: [{name: a, price_per_slot_hour: 1, return_at: 0.1}]}", "tiers[0].return_at is 0.1"),
        ("clusterz: []", "clusterz"),
    ],
)
def test_a_policy_a_router_would_refuse_is_refused_here(tmp_path, capsys, text, said):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert main(["sim", "--policy", str(path), "--limit", "10"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--policy", "/nonexistent.yaml"], "/nonexistent.yaml"),
        (["--policy", "P", "--speed", "0"], "use a number from 0.01"),
        (["--policy", "P", "--model", "llama"], "has no entry in models"),
    ],
)
def test_wrong_command_lines_name_the_fix(tmp_path, capsys, argv, said):
    path = tmp_path / "p.yaml"
    path.write_text(TIERED)
    assert main(["sim", *[str(path) if word == "P" else word for word in argv], "--limit", "10"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_the_recorded_trace_is_read_whole_and_its_reuse_is_known():
    arrivals = conversation()
    assert len(arrivals) == 12_031
    assert reuse_ceiling(arrivals) == pytest.approx(0.3736, abs=1e-3)
    assert all(one.at_s <= two.at_s for one, two in pairwise(arrivals))


def test_a_synthetic_day_follows_the_recorded_rates():
    rates = day_rates()
    assert len(rates) == 144
    assert sum(rates) / len(rates) == pytest.approx(1.0)
    arrivals = diurnal(mean_per_s=(5.0, 5.0), shift_h=(0.0, 12.0), day_s=1_440.0, until_s=1_440.0, seed=3)
    assert len(arrivals) == pytest.approx(2 * 5.0 * 1_440.0, rel=0.05)
    peak = max(range(24), key=lambda hour: sum(rates[hour * 6 : hour * 6 + 6]))
    own = [sum(one.origin == 0 and int(one.at_s // 60.0) == hour for one in arrivals) for hour in range(24)]
    assert abs(own.index(max(own)) - peak) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("build", [RegionLocal, LeastLoad, PrefixOnly, lambda *args: Gir(*args, PolicySnapshot())])
def test_every_request_of_a_replay_is_served_once_and_repeats_exactly(build):
    arrivals = conversation(limit=200, homes=3)
    specs, rtt_s = [_spec(each) for each in FLEET.clusters], [[0.03, 0.03, 0.11, 0.11, 0.3, 0.3]]
    one, two = (World(specs, rtt_s, build, seed=5).play(arrivals) for _ in range(2))
    assert [served.arrival.id for served in one.served] == list(range(200))
    assert all(0.0 < served.ttft_s <= served.end_to_end_s < 1e6 for served in one.served)
    assert sum(use.requests for use in one.uses) == 200
    assert [served.ttft_s for served in one.served] == [served.ttft_s for served in two.served]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--limit", "0"], "--limit is 0; use a whole number from 1 up"),
        (["--limit", "-5"], "--limit is -5"),
        (["--speed", "nan"], "--speed is nan; use a number from 0.01"),
        (["--speed", "1e-300"], "--speed is 1e-300"),
        (["--criticality", "sheddable"], "leaves request 0 without a cluster"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_one_line(options, told, tmp_path, capsys):
    new = tmp_path / "new.yaml"
    rest = "price_per_slot_hour: 1, criticality_min: standard"
    new.write_text(f"tiers: [{{name: reserved, {rest}}}, {{name: on_demand, {rest}}}]")
    assert main(["sim", "--policy", str(new), "--limit", "3", *options]) == 2
    told_now = capsys.readouterr().err
    assert told in told_now
    assert told_now.count("\n") == 1


@pytest.mark.parametrize(
    ("clusters", "told"),
    [
        ("[{id: a, %s}, {id: a, %s}]", "clusters has a twice"),
        ("[{id: a, kv_tokens: 1, %s}]", "more than the 512 tokens of KV memory"),
    ],
)
def test_a_fleet_that_cannot_be_is_said_in_one_line(clusters, told, tmp_path, capsys):
    rest = "region: r, tier: t, price_per_slot_hour: 1, rtt_ms: 1"
    fleet, new = tmp_path / "fleet.yaml", tmp_path / "new.yaml"
    fleet.write_text(f"clusters: {clusters.replace('%s', rest)}")
    new.write_text("{}")
    assert main(["sim", "--policy", str(new), "--fleet", str(fleet), "--limit", "3"]) == 2
    assert told in capsys.readouterr().err


def test_a_drain_and_a_weight_in_the_policy_are_tried_too(tmp_path, capsys):
    new = tmp_path / "new.yaml"
    drained = [f"{{id: {each.id}, intent: drain}}" for each in FLEET.clusters if each.tier == "reserved"]
    new.write_text(f"clusters: [{', '.join(drained)}]")
    assert main(["sim", "--policy", str(new), "--limit", "20", "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)["policies"]["proposed"]["tier_share"]
    assert shares == {"reserved": 0.0, "on_demand": 1.0}
