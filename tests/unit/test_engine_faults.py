"""Which request a fault hits is decided by the fault alone, and the same way every time."""

import msgspec
import pytest

from chaos.engine.faults import Fault, Faults

CHAT = "/v1/chat/completions"


def hits(fault: Fault, requests: int, path: str = CHAT) -> list[int]:
    faults = Faults()
    faults.install(fault)
    return [number for number in range(1, requests + 1) if faults.draw(path) is not None]


def test_count_and_skip_choose_which_requests_are_hit() -> None:
    assert hits(Fault(kind="reset"), 3) == [1, 2, 3]
    assert hits(Fault(kind="reset", skip=2, count=2), 6) == [3, 4]


def test_probability_is_drawn_from_the_faults_own_seed() -> None:
    first = hits(Fault(kind="reset", probability=0.3, seed=7), 200)
    assert first == hits(Fault(kind="reset", probability=0.3, seed=7), 200)
    assert first != hits(Fault(kind="reset", probability=0.3, seed=8), 200)
    assert 40 <= len(first) <= 80


def test_a_path_limits_the_fault_to_itself() -> None:
    assert hits(Fault(kind="reset", path="/v1/embeddings"), 2) == []
    assert hits(Fault(kind="reset", path="/v1/embeddings"), 2, "/v1/embeddings") == [1, 2]


def test_the_first_that_fires_decides_and_states_are_not_drawn() -> None:
    faults = Faults()
    for fault in (Fault(kind="unhealthy"), Fault(kind="reset", count=1), Fault(kind="status", status=503)):
        faults.install(fault)
    drawn = [faults.draw(CHAT) for _ in range(2)]
    assert [fault.kind for fault in drawn if fault is not None] == ["reset", "status"]
    assert faults.state("unhealthy") is not None
    assert faults.state("slow") is None


def test_random_cuts_lie_between_zero_and_the_bound() -> None:
    faults = Faults()
    faults.install(Fault(kind="cut", how="rst", after_chunks=5, random_chunks=True, seed=3))
    drawn = {fault.after_chunks for _ in range(200) if (fault := faults.draw(CHAT))}
    assert drawn == {0, 1, 2, 3, 4, 5}


def test_installing_by_name_replaces_and_removing_by_name_leaves_the_rest() -> None:
    faults = Faults()
    faults.install(Fault(kind="status", name="x", status=500))
    faults.install(Fault(kind="reset"))
    faults.install(Fault(kind="status", name="x", status=503))
    assert [row["status"] for row in faults.rows() if row["name"] == "x"] == [503]
    assert faults.remove("x") == 1
    assert [row["kind"] for row in faults.rows()] == ["reset"]
    assert faults.remove() == 1


def test_hits_are_reported() -> None:
    faults = Faults()
    faults.install(Fault(kind="reset", skip=1))
    for _ in range(3):
        faults.draw(CHAT)
    (row,) = faults.rows()
    assert (row["seen"], row["hits"]) == (3, 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"kind":"explode"}', "explode"),
        ('{"kind":"cut"}', "how is ''.*rst, fin, truncate"),
        ('{"kind":"cut","how":"gently"}', "gently"),
        ('{"kind":"status","status":42}', "status"),
        ('{"kind":"reset","probability":2}', "probability"),
        ('{"kind":"reset","colour":"red"}', "colour"),
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_with_the_field(text: str, says: str) -> None:
    with pytest.raises((msgspec.ValidationError, ValueError), match=says):
        msgspec.json.decode(text, type=Fault)
