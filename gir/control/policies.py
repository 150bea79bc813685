"""The policy in force, and the file it comes from.

The file is looked at every second by its stamp. A new text is parsed, validated and built as a whole and swapped in by
one reference; a bad one changes nothing but the reason that says so, told once. The last good text is kept on disk if
there is a place for it, so that a restart with a bad file still has something to serve by.
"""

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from gir.clock import Clock
from gir.control.config import RouterConfig, from_text
from gir.model.policy import PolicySnapshot
from gir.settings import ConfigError, read_text
from gir.telemetry.logs import Logger
from gir.telemetry.metrics import RouterMetrics

POLL_S = 1.0
LAST_GOOD = "last-good.yaml"


def boot(path: Path, state: Path | None) -> tuple[RouterConfig, str]:
    """Configuration to start with, and why it is not the file's own ('' when it is).

    A bad file is replaced by the last good text in `state`; without one, raises ConfigError.
    """
    from gir.control.config import load

    try:
        return load(path), ""
    except ConfigError as error:
        kept = state / LAST_GOOD if state is not None else None
        if kept is None or not kept.exists():
            raise
        return from_text(read_text(kept), source=str(kept)), str(error)


class Policies:
    """`current` is what a request that starts now keeps to its end.

    `adopt(policy)` is called with each new policy before it becomes current; when it raises ValueError the policy is
    refused like one that does not parse.
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
        self.restart_needed = False
        """The file differs in what only a restart takes up."""
        self._config = config
        self._path = path
        self._clock = clock
        self._metrics = metrics
        self._log = log
        self._state = state
        self._stamp = self._stamp_of()
        self._adopt: Callable[[PolicySnapshot], None] = lambda _: None
        if rejected:
            log.error("configuration refused; started from the last good one", reason=rejected)
            metrics.policy_rejected.one.set(1)

    def __repr__(self) -> str:
        return f"<Policies version {self.current.version}{' REJECTED' if self.rejected else ''}>"

    def on_change(self, adopt: Callable[[PolicySnapshot], None]) -> None:
        """Who is asked to take over each new policy."""
        self._adopt = adopt

    async def run(self) -> None:
        """Watch the file for ever."""
        self.keep_last_good()
        while True:
            await self._clock.sleep_s(POLL_S)
            self.look()

    def look(self) -> bool:
        """Read the file if it has changed; True when a new policy is in force."""
        stamp = self._stamp_of()
        if self._path is None or stamp is None or stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            config = from_text(read_text(self._path), source=str(self._path))
            return self._take(config)
        except ValueError as error:
            self.rejected = str(error)
            self._metrics.policy_reloads.child("rejected").inc()
            self._metrics.policy_rejected.one.set(1)
            self._log.error("policy refused; the last good one stays", reason=self.rejected)
            return False

    def _take(self, config: RouterConfig) -> bool:
        policy = msgspec.structs.replace(config.policy, version=self.current.version + 1)
        changed = msgspec.structs.replace(config.policy, digest="") != msgspec.structs.replace(
            self.current, version=0, digest=""
        )
        if changed:
            self._adopt(policy)
            self.current = policy
        restart = msgspec.structs.replace(config, policy=PolicySnapshot()) != msgspec.structs.replace(
            self._config, policy=PolicySnapshot()
        )
        if restart and not self.restart_needed:
            self._log.warning("settings outside policy changed; they take effect at the next start")
        self.restart_needed = restart
        self.rejected = ""
        self._metrics.policy_rejected.one.set(0)
        self._metrics.policy_reloads.child("taken").inc()
        self._log.info("policy taken", version=self.current.version, digest=config.policy.digest, changed=changed)
        self.keep_last_good()
        return changed

    def keep_last_good(self) -> None:
        """Copy the text in force to the state directory, in one step."""
        if self._state is None or self._path is None or self.rejected:
            return
        try:
            self._state.mkdir(parents=True, exist_ok=True)
            scratch = self._state / f"{LAST_GOOD}.{os.getpid()}"
            scratch.write_text(read_text(self._path), encoding="utf-8")
            scratch.replace(self._state / LAST_GOOD)
        except (OSError, ConfigError) as error:
            self._log.warning("last good configuration not kept", reason=str(error))

    def _stamp_of(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino
