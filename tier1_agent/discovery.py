"""Which pods there are: a list in the configuration, or a file that is read again whenever it changes.

A file that cannot be used leaves the pods as they were and says why; a file that names no pod is obeyed, and is a
condition an operator sees rather than a quiet "ready".
"""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from gir.clock import Clock
from gir.model.ids import ModelId, PodId
from gir.net.pool import Endpoint
from gir.settings import ConfigError, parse_with_source, read_text
from tier1_agent.pods import PodSpec

Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
Text = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class PodEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine endpoint as an operator writes it."""

    url: str
    """`http://host:port`, with a base path if the engine has one; without `/v1`."""
    model: Text
    """Base model it serves, by the name clients use."""
    name: Text | None = None
    """Shown in headers and metrics; default host:port."""
    slots: Annotated[int, msgspec.Meta(ge=1, le=65_536)] | None = None
    """Requests it runs at once (vLLM --max-num-seqs); left out: learned from its metrics."""
    metrics: bool | str = True
    """True: `url`/metrics; false: it has none; or the page's own URL."""
    adapters: tuple[Text, ...] = ()
    """LoRA adapters it has loaded."""
    adapters_loadable: tuple[Text, ...] = ()
    """Adapters it can load when asked."""
    context_tokens_max: Count | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    api_key_file: str | None = None
    """File with the key the engine wants (vLLM --api-key), beside the file that names it."""


class PodsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of pods."""

    pods: tuple[PodEntry, ...] = ()


def pods_of(entries: Iterable[PodEntry], *, source: str, base: Path) -> tuple[PodSpec, ...]:
    """Specs of all entries; files they name are looked for in `base`.

    Raises ConfigError with a line for each entry that is wrong, naming its field, value and fix.
    """
    specs: dict[PodId, PodSpec] = {}
    served: dict[tuple[str, ModelId], PodId] = {}
    faults: list[str] = []
    for index, entry in enumerate(entries):
        where = f"{source}[{index}]"
        try:
            spec = _spec(entry, where, base)
        except ConfigError as error:
            faults.append(str(error))
            continue
        if spec.id in specs:
            faults.append(f"{where}.name is {spec.id!r}: another pod has it; give each pod a name of its own")
        elif (twin := served.setdefault((spec.url, spec.model), spec.id)) != spec.id:
            faults.append(f"{where}.url is {spec.url!r}: pod {twin!r} has it for this model too; keep one of them")
        specs[spec.id] = spec
    if faults:
        raise ConfigError("\n".join(faults))
    return tuple(specs.values())


def _spec(entry: PodEntry, where: str, base: Path) -> PodSpec:
    endpoint = _endpoint(entry.url, f"{where}.url")
    if endpoint.base_path.endswith("/v1"):
        raise ConfigError(f"{where}.url is {entry.url!r}: leave out /v1, the path of each request has it already")
    metrics_url: str | None = None
    if entry.metrics is True:
        metrics_url = f"{endpoint}/metrics"
    elif isinstance(entry.metrics, str):
        _endpoint(entry.metrics, f"{where}.metrics")
        metrics_url = entry.metrics
    id_ = entry.name or f"{endpoint.authority.decode()}{endpoint.base_path}"
    if not id_.isascii() or not id_.isprintable() or " " in id_:
        raise ConfigError(f"{where}.name is {id_!r}: it goes into a header; use printable ASCII without spaces")
    return PodSpec(
        id=PodId(id_),
        url=str(endpoint),
        model=ModelId(entry.model),
        slots=entry.slots,
        metrics_url=metrics_url,
        adapters_resident=frozenset(map(ModelId, entry.adapters)),
        adapters_loadable=frozenset(map(ModelId, entry.adapters_loadable)),
        context_tokens_max=entry.context_tokens_max,
        labels=entry.labels,
        api_key=_api_key(base / entry.api_key_file, where) if entry.api_key_file is not None else None,
    )


def _api_key(path: Path, where: str) -> str:
    try:
        return read_text(path).strip()
    except ConfigError as error:
        raise ConfigError(f"{where}.api_key_file: {error}") from None


def _endpoint(url: str, field: str) -> Endpoint:
    try:
        return Endpoint.parse(url)
    except ValueError as error:
        raise ConfigError(f"{field} is {str(error).removeprefix('url ')}") from None


def read_pods(path: Path) -> tuple[PodSpec, ...]:
    """Specs in the file at `path`. Raises ConfigError."""
    found, where = parse_with_source(read_text(path), PodsFile, source=str(path))
    try:
        return pods_of(found.pods, source="pods", base=path.parent)
    except ConfigError as error:
        where.refuse(str(error).splitlines())
        raise


class PodsWatch:
    """Reads the file whenever it has changed and gives its pods to `apply`; keeps the last good ones otherwise."""

    __slots__ = ("_apply", "_clock", "_on_error", "_path", "_poll_s", "_seen", "count", "error")

    def __init__(
        self,
        path: Path,
        *,
        apply: Callable[[tuple[PodSpec, ...]], None],
        on_error: Callable[[str], None],
        clock: Clock,
        poll_s: float,
    ) -> None:
        self._path = path
        self._apply = apply
        self._on_error = on_error
        self._clock = clock
        self._poll_s = poll_s
        self._seen: tuple[int, int, int] | str | None = None
        self.count = 0
        """Pods in the last good version."""
        self.error: str | None = None
        """Why the present version of the file is not in use; None when it is."""

    def look(self) -> bool:
        """Read the file if it has changed; whether it had."""
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            specs = read_pods(self._path)
        except ConfigError as error:
            self.error = str(error)
            self._on_error(self.error)
            return True
        self.error = None
        self.count = len(specs)
        self._apply(specs)
        return True

    async def run(self) -> None:
        """Look every `poll_s` until cancelled."""
        while True:
            await self._clock.sleep_s(self._poll_s)
            if await asyncio.to_thread(_stamp, self._path) != self._seen:
                self.look()


def _stamp(path: Path) -> tuple[int, int, int] | str:
    """What changes when the file does: a rewrite in place, a rename over it, its disappearance."""
    try:
        stat = path.stat()
    except OSError as error:
        return error.strerror or type(error).__name__
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
