"""Whoever breaks something registers beforehand how it is mended."""

from collections.abc import Callable

Mend = Callable[[], object]


class Undo:
    """Mends by name, carried out last in, first out. A failing mend does not keep the others from running."""

    def __init__(self) -> None:
        self._mends: dict[str, Mend] = {}

    def __len__(self) -> int:
        return len(self._mends)

    def register(self, name: str, mend: Mend) -> None:
        """Remember a mend before acting. A name that is there already keeps its first mend."""
        self._mends.setdefault(name, mend)

    def mend(self, name: str) -> bool:
        """Carry out one mend and forget it; False when there is none of this name."""
        found = self._mends.pop(name, None)
        if found is None:
            return False
        found()
        return True

    def mend_all(self) -> None:
        """Carry out every mend; raises ExceptionGroup afterwards if some failed."""
        errors: list[Exception] = []
        while self._mends:
            _, mend = self._mends.popitem()
            try:
                mend()
            except OSError as error:
                errors.append(error)
        if errors:
            raise ExceptionGroup("some faults could not be mended", errors)
