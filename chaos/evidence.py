"""All that a drill is judged by: the client's history, scrapes of the routers' metrics, and when what was done.

It is written to a directory and read back whole, so a verdict can be reached again, by other code, years later.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from chaos import history
from chaos.engine.driver import Stats
from chaos.history import Record

_SAMPLE = re.compile(r"^(gir_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]


class Scrape(msgspec.Struct, frozen=True):
    """One look at a router's /metrics: samples as written, `name{labels}` to value."""

    at_s: float
    samples: dict[str, float]


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """How long limits took to judge one request, by the router's own access log."""

    took_ms: float
    """For a refused request from its arrival to its answer; for one let in, `asked_ms`."""
    asked_ms: float
    """Time it waited for the shared store; 0 when the store was not asked."""


class LogLine(msgspec.Struct, frozen=True):
    """One line of a router's log that is about no request."""

    router: str
    at_s: float
    """On the client's clock."""
    event: str
    level: str
    text: str


class Facts(msgspec.Struct, kw_only=True):
    """What was run, and when."""

    drill: str
    scale: float
    victims: tuple[str, ...]
    marks: dict[str, float] = {}
    """Moments on the client's clock: `start`, `fault`, `heal`, `end`, and what the drill adds."""
    hits: dict[str, int] = {}
    """What each fault touched, by the injector's own count: processes, connections, requests or questions."""
    stopped: str = ""
    """Why the drill was broken off; '' when it ran to its end."""
    settings: dict[str, str] = {}
    engines: dict[str, Stats] = {}
    """What each engine did, when all was quiet again."""
    figures: dict[str, float] = {}
    """What the drill itself measured beside the load, by name; seconds, bytes or counts."""
    router_ended: bool = False
    """A router ended meanwhile: its last counts were seen by nobody, so requests are counted in the logs."""
    requests_logged: int = 0
    """Requests in the routers' access logs."""
    decisions: dict[str, Decision] = {}
    """By request id; only where limits are at stake."""
    log: list[LogLine] = []
    """What routers logged beside requests."""


class Evidence:
    """One run. `experiment` is the load that was hurt, `control` the load beside it that was not."""

    def __init__(
        self, facts: Facts, experiment: Sequence[Record], control: Sequence[Record], scrapes: Sequence[Scrape]
    ) -> None:
        self.facts = facts
        self.experiment = experiment
        self.control = control
        self.scrapes = scrapes

    @property
    def records(self) -> list[Record]:
        """Every request that was sent."""
        return [record for record in (*self.experiment, *self.control) if record.ended != "skipped"]

    def at(self, mark: str) -> float:
        """When a mark was set; infinity when it never was."""
        return self.facts.marks.get(mark, float("inf"))

    def total(self, scrape: Scrape, family: str, labels: Mapping[str, str] | None = None) -> float:
        """Sum of a family's samples that carry all of `labels`."""
        wanted = (labels or {}).items()
        return sum(
            value
            for name, value in scrape.samples.items()
            if name.partition("{")[0] == family and wanted <= dict(_LABEL.findall(name)).items()
        )

    def increase(self, family: str, labels: Mapping[str, str] | None = None) -> float:
        """Growth of a counter from the first scrape to the last."""
        return self.total(self.scrapes[-1], family, labels) - self.total(self.scrapes[0], family, labels)

    def placements(self, scrape: Scrape) -> float:
        """Dispatches to the victims."""
        return sum(self.total(scrape, "gir_placements_total", {"cluster": name}) for name in self.facts.victims)

    def last_placement_s(self, *, after_s: float, until_s: float) -> float | None:
        """When a victim was last seen to be given work inside a span of time; None when it never was."""
        seen = None
        before = 0.0
        for index, scrape in enumerate(self.scrapes):
            value = self.placements(scrape)
            if index and value > before and after_s < scrape.at_s <= until_s:
                seen = scrape.at_s
            before = value
        return seen

    def save(self, directory: Path) -> None:
        """Write everything."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "facts.json").write_bytes(msgspec.json.format(msgspec.json.encode(self.facts)))
        history.write(directory / "experiment.jsonl", self.experiment)
        history.write(directory / "control.jsonl", self.control)
        (directory / "scrapes.jsonl").write_bytes(b"".join(msgspec.json.encode(s) + b"\n" for s in self.scrapes))

    @classmethod
    def load(cls, directory: Path) -> "Evidence":
        """Read what `save` wrote; raises OSError or ValueError naming the file."""
        facts_path = directory / "facts.json"
        try:
            facts = msgspec.json.decode(facts_path.read_bytes(), type=Facts)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{facts_path}: {error}") from error
        lines = (directory / "scrapes.jsonl").read_bytes().splitlines()
        return cls(
            facts,
            history.read(directory / "experiment.jsonl"),
            history.read(directory / "control.jsonl"),
            [msgspec.json.decode(line, type=Scrape) for line in lines],
        )


def samples(page: str) -> dict[str, float]:
    """The samples of GIR's own families on a Prometheus page; histogram buckets are left out."""
    found = {}
    for name, labels, value in _SAMPLE.findall(page):
        if not name.endswith(("_bucket", "_created")):
            found[f"{name}{{{labels}}}" if labels else name] = float(value)
    return found
