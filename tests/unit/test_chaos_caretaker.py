"""A demo's killed cluster comes back by itself, and every step of it is told once."""

from chaos.caretaker import Caretaker


class Process:
    def __init__(self) -> None:
        self.alive = True


class Cluster:
    def __init__(self) -> None:
        self.processes = [Process(), Process()]
        self.pids = [11, 12]


class Site:
    def __init__(self) -> None:
        self.clusters = {"a": Cluster(), "b": Cluster()}
        self.started: list[str] = []

    def start_cluster(self, name: str) -> None:
        self.started.append(name)
        self.clusters[name].processes = [Process(), Process()]
        self.clusters[name].pids = [21, 22]


def test_a_fleet_in_which_nothing_happens_is_not_talked_about() -> None:
    caretaker = Caretaker(Site(), 20.0)
    assert caretaker.look({}, 0.0) == caretaker.look({"a": "healthy", "b": "ramping"}, 99.0) == []


def test_a_killed_cluster_returns_after_its_time_and_its_way_back_is_told() -> None:
    site = Site()
    caretaker = Caretaker(site, 20.0)
    caretaker.look({"a": "healthy"}, 0.0)
    site.clusters["a"].processes[1].alive = False
    (told,) = caretaker.look({"a": "suspect"}, 1.0)
    assert "a was killed" in told
    assert "started again in 20 s" in told
    assert caretaker.look({"a": "dead"}, 20.9) == []
    assert site.started == []
    (told,) = caretaker.look({"a": "dead"}, 21.0)
    assert "kill -9 21 22" in told
    assert site.started == ["a"]
    steps = [caretaker.look({"a": state}, 22.0) for state in ("suspect", "ramping", "ramping", "healthy", "healthy")]
    assert [len(step) for step in steps] == [0, 1, 0, 1, 0]
    assert "a tenth" in steps[1][0]
    assert "gir drain a" in steps[3][0]


def test_nobody_is_said_to_take_over_when_nobody_is_left() -> None:
    site = Site()
    caretaker = Caretaker(site, 20.0)
    site.clusters["a"].processes[0].alive = False
    assert "traffic goes to the others" in caretaker.look({}, 1.0)[0]
    site.clusters["b"].processes[0].alive = False
    assert "None is left: clients get 503" in caretaker.look({}, 2.0)[0]


def test_a_cluster_can_be_killed_again() -> None:
    site = Site()
    caretaker = Caretaker(site, 5.0)
    for start_s in (0.0, 100.0):
        site.clusters["b"].processes[0].alive = False
        assert len(caretaker.look({}, start_s)) == 1
        assert len(caretaker.look({}, start_s + 5.0)) == 1
        caretaker.look({}, start_s + 6.0)
    assert site.started == ["b", "b"]
