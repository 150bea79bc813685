"""Whatever was broken is mended, in the right order, whatever goes wrong meanwhile."""

import pytest

from chaos.faults.undo import Undo


def test_mends_run_last_in_first_out_and_once() -> None:
    undo, order = Undo(), list[str]()
    undo.register("a", lambda: order.append("a"))
    undo.register("b", lambda: order.append("b"))
    undo.mend_all()
    undo.mend_all()
    assert order == ["b", "a"]
    assert len(undo) == 0


def test_one_mend_can_be_carried_out_early() -> None:
    undo, order = Undo(), list[str]()
    undo.register("a", lambda: order.append("a"))
    assert undo.mend("a")
    assert not undo.mend("a")
    assert order == ["a"]


def test_the_first_mend_of_a_name_is_kept() -> None:
    undo, order = Undo(), list[str]()
    undo.register("a", lambda: order.append("first"))
    undo.register("a", lambda: order.append("second"))
    undo.mend_all()
    assert order == ["first"]


def test_a_failing_mend_does_not_keep_the_others_from_running() -> None:
    undo, order = Undo(), list[str]()

    def fail() -> None:
        raise OSError("no")

    undo.register("a", lambda: order.append("a"))
    undo.register("b", fail)
    with pytest.raises(ExceptionGroup, match="could not be mended"):
        undo.mend_all()
    assert order == ["a"]
