"""The policy in force, and the file it comes from.

The file is looked at every second by its stamp. A new text is parsed, validated and built as a whole and swapped in by
one reference; a bad one changes nothing but the reason that says so, told once. One that is refused only for what the
fleet lacks (a canary of a model nobody serves) is looked at again every second, and taken when the fleet has it. The
last good text is kept on disk if there is a place for it, so that a restart with a bad file still has something to
serve by.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from gir.clock import Clock
from gir.control.config import RouterConfig, digest_of, from_text, load, restart_fields
from gir.model.policy import PolicySnapshot
from gir.place.lacking import FleetLacksError
from gir.settings import ConfigError, read_text
from gir.telemetry.logs import Logger
from gir.telemetry.metrics import RouterMetrics

POLL_S = 1.0
LAST_GOOD = "last-good.yaml"
SETTLING_S = 30.0
"""After a start, clusters report one by one: until then, what the fleet seems to lack is shown but not logged."""

Stamp = tuple[int, int, int]
Review = Callable[[PolicySnapshot, PolicySnapshot], tuple[str, ...]]


def boot(path: Path, state: Path | None) -> tuple[RouterConfig, str]:
    """Configuration to start with, and why it is not the file's own ('' when it is).

    A bad file is replaced by the last good text in `state`; without one, raises ConfigError.
    """
    try:
        return load(path), ""
    except ConfigError as error:
        kept = state / LAST_GOOD if state is not None else None
        if kept is None or not kept.exists():
            raise
        return from_text(read_text(kept), source=str(kept), base=path.resolve().parent), str(error)


class Policies:
    """`current` is what a request that starts now keeps to its end.

    `review(policy, before)` is asked what the fleet lacks for a new policy: it returns warnings or raises
    FleetLacksError. Then `adopt(policy)` is called, before the policy becomes current. When either raises ValueError,
    the policy is refused like one that does not parse.
    """

    def __init__(
        self,
        config: RouterConfig,
        path: Path | None,
        *,
        clock: Clock,
        metrics: RouterMetrics,
        log: Logger,
        state: Path | None = None,
        rejected: str = "",
    ) -> None:
        self.current: PolicySnapshot = msgspec.structs.replace(config.policy, version=1)
        self.rejected = rejected
        """Why the newest text is not in force; '' when it is."""
        self.restart_needed: tuple[str, ...] = ()
        """Fields of the file that differ from what this process runs with and that only a restart takes up."""
        self.warnings: tuple[str, ...] = ()
        """What the policy in force asks for and the fleet lacks."""
        self._warned: tuple[str, ...] = ()
        self._config = config
        self._path = path
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._state = state
        self._since_s = self._started_s = clock.monotonic_s()
        self._stamp = self._stamp_now()
        self._adopt: Callable[[PolicySnapshot], None] = lambda _: None
        self._review: Review = lambda *_: ()
        self._awaited: tuple[RouterConfig, str] | None = None
        """What was refused only for what the fleet lacks."""
        if rejected:
            log.error("configuration refused; started from the last good one", reason=rejected)
            metrics.policy_rejected.one.set(1)

    def __repr__(self) -> str:
        return f"<Policies version {self.current.version}{' REJECTED' if self.rejected else ''}>"

    def on_change(self, adopt: Callable[[PolicySnapshot], None], review: Review = lambda *_: ()) -> None:
        """Who holds each new policy against the fleet, and who is asked to take it over."""
        self._adopt = adopt
        self._review = review

    async def run(self) -> None:
        """Watch the file for ever. It is read and parsed beside the event loop: a large one takes a while."""
        await asyncio.to_thread(self._keep_booted)
        while True:
            await self._clock.sleep_s(POLL_S)
            self._metrics.policy_age_s.one.set(self._clock.monotonic_s() - self._since_s)
            if self._has_changed():
                self._judge(await asyncio.to_thread(self._read))
            else:
                self._follow_fleet()

    def look(self) -> bool:
        """Read the file if it has changed; True when a new policy is in force."""
        return self._judge(self._read()) if self._has_changed() else self._follow_fleet()

    def _follow_fleet(self) -> bool:
        """Take what was refused for want of something the fleet has by now; and say what it still lacks.

        True when a new policy is in force.
        """
        if self._awaited is not None:
            try:
                self._review(self._awaited[0].policy, self.current)
            except FleetLacksError:
                return False
            return self._judge(self._awaited)
        self.warnings = self._review(self.current, self.current)
        if self._clock.monotonic_s() - self._started_s >= SETTLING_S:
            self._warn()
        return False

    def _warn(self) -> None:
        """Log what the fleet lacks, when it is other than last time."""
        if self.warnings and self.warnings != self._warned:
            self._log.warning("policy asks for what the fleet lacks", warnings=self.warnings)
        self._warned = self.warnings

    def _has_changed(self) -> bool:
        stamp = self._stamp_now()
        changed = self._path is not None and stamp != self._stamp
        self._stamp = stamp
        return changed

    def _read(self) -> tuple[RouterConfig, str] | ConfigError:
        """Configuration in the file and its text, or what is wrong with it. Touches nothing of this object."""
        assert self._path is not None, "somebody asked for a file there is none of"
        try:
            text = read_text(self._path)
            return from_text(text, source=str(self._path), base=self._path.resolve().parent), text
        except ConfigError as error:
            return error

    def _judge(self, read: tuple[RouterConfig, str] | ConfigError) -> bool:
        """Take what was read, or keep the last good one and say why; True when a new policy is in force."""
        self._awaited = None
        try:
            if isinstance(read, ConfigError):
                raise read
            return self._take(*read)
        except ValueError as error:
            if isinstance(error, FleetLacksError) and not isinstance(read, ConfigError):
                self._awaited = read
            self.rejected = str(error)
            self._metrics.policy_reloads.child("rejected").inc()
            self._metrics.policy_rejected.one.set(1)
            self._log.error("policy refused; the last good one stays", reason=self.rejected)
            return False

    def _take(self, config: RouterConfig, text: str) -> bool:
        policy = msgspec.structs.replace(config.policy, version=self.current.version + 1)
        changed = _content(policy) != _content(self.current)
        if changed:
            warnings = self._review(policy, self.current)
            self._adopt(policy)
            self.warnings = warnings
            self._warn()
            self.current = policy
            self._since_s = self._clock.monotonic_s()
        restart = restart_fields(self._config, config)
        if restart and restart != self.restart_needed:
            self._log.warning("settings outside policy changed; they take effect at the next start", fields=restart)
        self.restart_needed = restart
        self._metrics.restart_needed.one.set(len(restart))
        self.rejected = ""
        self._metrics.policy_rejected.one.set(0)
        self._metrics.policy_reloads.child("taken").inc()
        self._log.info("policy taken", version=self.current.version, digest=config.policy.digest, changed=changed)
        self._keep(text)
        return changed

    def _keep_booted(self) -> None:
        """Keep the text this process started with, unless it started from that very copy."""
        if self._path is None or self.rejected:
            return
        try:
            text = read_text(self._path)
        except ConfigError:
            return  # gone in the meantime; the next look says so
        if digest_of(text) == self._config.policy.digest:
            self._keep(text)

    def _keep(self, text: str) -> None:
        """Copy an accepted text to the state directory, in one step. It may hold secrets: nobody else may read it."""
        if self._state is None:
            return
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            scratch = self._state / f"{LAST_GOOD}.{os.getpid()}"
            with open(scratch, "w", encoding="utf-8", opener=_private) as file:
                file.write(text)
            scratch.replace(self._state / LAST_GOOD)
        except OSError as error:
            self._log.warning("last good configuration not kept", reason=str(error))

    def _stamp_now(self) -> Stamp | None:
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _content(policy: PolicySnapshot) -> PolicySnapshot:
    """What a policy says, without who says it."""
    return msgspec.structs.replace(policy, version=0, digest="")
