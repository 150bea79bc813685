"""Deliberate defects, to prove that the simulation and the tests would notice them.

A harness that has never been seen to fail proves nothing. Each defect here changes the real code while it is planted,
and `tests/sim/test_bugs.py` demands that something turns red: the simulation (`seeds` says where to look) or a named
test.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec


class Bug(msgspec.Struct, frozen=True, kw_only=True):
    """One defect."""

    name: str
    what: str
    """What a reviewer would say of it."""
    target: Any
    """Class or module that holds the attribute."""
    attribute: str
    replace: Callable[[Any], Any]
    """Makes the wrong thing from the right one."""
    finding: str = ""
    """Beginning of what the simulation reports; '' when only a test notices."""
    first: int = 1
    """Seed to begin with: one that was seen to find it."""
    seeds: int = 60
    """It must show within so many seeds."""
    faults: frozenset[str] | None = None
    """Kinds of trouble that bring it to light; None for all."""
    test: str = ""
    """Test that fails under it, as `module:function`; '' when the simulation is enough."""
    arguments: tuple[Any, ...] = ()
    """What the test is called with."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The world with the defect in it."""
        right = self.target.__dict__[self.attribute]
        setattr(self.target, self.attribute, self.replace(right))
        try:
            yield
        finally:
            setattr(self.target, self.attribute, right)
