"""`gir status` in an operator's words: what serves, what warms up, what is gone, and which figures are old."""

import io
import json
from typing import Any

import msgspec
import pytest
from rich.console import Console

from gir.cli import status_cmd
from gir.cli.main import main
from gir.model.beat import BeatReport, Condition
from gir.model.cluster import Intent
from gir.model.ids import ClusterId
from tests.support.fleet import Fleet, pool
from tests.support.orders import WHERE

CONFIG: dict[str, Any] = {
    "version": 3,
    "rejected": "",
    "warnings": [],
    "restart_needed": [],
    "agents": ["eu-1", "us-1"],
}


def settled() -> Fleet:
    fleet = Fleet("eu-1", "us-1")
    fleet.run(30.0)
    return fleet


def rows(fleet: Fleet) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(fleet.registry.rows(fleet.now_s)))
    return shown


def report(fleet: Fleet, **fields: Any) -> None:
    """A beat of us-1 that says something else."""
    beat = BeatReport(cluster=ClusterId("us-1"), epoch=1, seq=fleet.clusters["us-1"].seq + 1, **fields)
    fleet.clusters["us-1"].seq += 1
    fleet.registry.beat(beat, fleet.now_s)


def drawn(fleet: Fleet, **config: Any) -> str:
    paper = io.StringIO()
    console = Console(width=160, file=paper)
    console.print(status_cmd.screen({"clusters": rows(fleet), "config": {**CONFIG, **config}, "orders": WHERE}))
    return paper.getvalue()


def line(fleet: Fleet, cluster: str = "us-1") -> list[str]:
    """Cells of a cluster's line: Region, cluster, tier, state, weight, heard, RTT, pods, slots, why."""
    (found,) = [text for text in drawn(fleet).splitlines() if f" {cluster} " in text]
    return [cell.strip() for cell in found.strip("│ ").split("│")]


def test_a_cluster_that_serves_shows_its_figures() -> None:
    cells = line(settled())
    assert (cells[3], cells[6], cells[7], cells[8]) == ("healthy", "10.0 ms", "1", "8/8")


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"pools": (pool("llama"),), "condition": Condition.WARMING}, "warming"),
        ({"pools": (msgspec.structs.replace(pool("llama"), pods_ready=0, pods_warming=2),)}, "warming"),
        ({"pools": (msgspec.structs.replace(pool("llama"), pods_ready=0),)}, "no pods"),
        ({"pools": ()}, "no pods"),
        ({"pools": (pool("llama"),), "condition": Condition.DRAINING}, "stopping"),
    ],
)
def test_a_cluster_without_ready_pods_is_not_called_healthy(fields: dict[str, Any], state: str) -> None:
    fleet = settled()
    report(fleet, **fields)
    assert line(fleet)[3] == state
    assert not status_cmd._fine(next(row for row in rows(fleet) if row["cluster"] == "us-1"))


def test_an_agent_that_refuses_probes_for_want_of_pods_is_warming_not_suspect() -> None:
    fleet = settled()
    fleet.clusters["us-1"].probe = "miss"
    fleet.clusters["us-1"].condition = Condition.WARMING
    fleet.run(6.0)
    assert (fleet.state("us-1").status.value, line(fleet)[3]) == ("suspect", "warming")
    fleet.clusters["us-1"].condition = Condition.SERVING
    fleet.run(2.0)
    assert line(fleet)[3] == "suspect"


def test_figures_of_a_silent_cluster_are_marked_and_those_of_a_dead_one_blank() -> None:
    fleet = settled()
    fleet.clusters["us-1"].beating = False
    fleet.run(8.0)
    cells = line(fleet)
    assert (cells[3], cells[7], cells[8]) == ("suspect", "(1)", "(8/8)")
    assert cells[5].endswith(" s ago")
    fleet.run(12.0)
    cells = line(fleet)
    assert (cells[3], cells[7], cells[8]) == ("dead", "-", "-")
    assert cells[5].split()[0].isdecimal()
    assert int(cells[5].split()[0]) >= 18


def test_figures_of_an_agent_that_died_under_a_paused_router_are_marked_although_its_silence_is_excused() -> None:
    fleet = settled()
    fleet.pause(2.0)
    fleet.crash("us-1")
    fleet.run(2.0)
    cells = line(fleet)
    assert (cells[3], cells[7], cells[8]) == ("suspect", "(1)", "(8/8)")


def test_the_round_trip_of_a_cluster_that_answers_no_probe_is_blank() -> None:
    fleet = settled()
    fleet.freeze("us-1")
    fleet.run(5.0)
    assert line(fleet)[6] == "-"


def test_an_operators_wish_stands_beside_the_state() -> None:
    fleet = settled()
    fleet.registry.set_intent(ClusterId("us-1"), Intent.DRAIN, fleet.now_s)
    assert line(fleet)[3] == "healthy (drain)"


def test_an_empty_fleet_is_a_sentence_that_helps() -> None:
    shown = drawn(Fleet())
    assert "No cluster has reported to this router yet; it waits for eu-1, us-1." in shown
    assert "GIR fleet" not in shown
    assert "`agents` in its file is empty" in drawn(Fleet(), agents=[])


def test_what_is_not_as_the_file_wants_it_stands_below() -> None:
    shown = drawn(
        settled(),
        agents=["eu-1", "us-1", "ap-1"],
        rejected="r.yaml:3: x is 1",
        restart_needed=["listen", "admin.tokens"],
    )
    assert "never heard of since the router started: ap-1" in shown
    assert "refused, version 3 stays:\n  r.yaml:3: x is 1" in shown
    assert "in force after a restart: listen, admin.tokens" in shown


@pytest.mark.parametrize(("names", "code"), [((), 1), (("eu-1", "us-1"), 0)])
def test_json_holds_the_rows_as_they_came_and_the_exit_code_the_verdict(
    names: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(*names)
    fleet.run(30.0)
    answers = {
        "/admin/clusters": {"fleet": "x", "clusters": rows(fleet)},
        "/admin/config": {**CONFIG, "policy": {"tiers": []}},
    }
    monkeypatch.setattr(status_cmd, "call", lambda _, path: answers[path])
    assert main(["status", "--json"]) == code
    shown = json.loads(capsys.readouterr().out)
    assert (shown["clusters"], shown["config"]) == (rows(fleet), CONFIG)
