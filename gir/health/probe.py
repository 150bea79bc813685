"""Probe state: what asking a cluster over the data path says about it. The asking is `gir.control.prober`.

A frozen process still accepts connections, so a miss is an answer that did not come in time; several in a row make
a cluster MISSED. A refused connection is the word of the other host's kernel that nobody listens, and is believed at
once. One good answer clears either; how many are needed to get work again is for `gir.health.record` to say.
"""

import enum

from gir.model.policy import HealthPolicy

RTT_GAIN = 0.2
"""Weight of a new sample in the moving average of the round trip."""


class Probes(enum.Enum):
    """What the probes say."""

    UNPROVEN = "unproven"
    OK = "ok"
    MISSED = "missed"
    REFUSED = "refused"


class ProbeState:
    """Probes of one cluster."""

    __slots__ = ("misses", "policy", "rtt_min_s", "rtt_s", "state", "streak")

    def __init__(self, policy: HealthPolicy) -> None:
        self.policy = policy
        self.state = Probes.UNPROVEN
        self.misses = 0
        """Misses in a row."""
        self.streak = 0
        """Good answers in a row."""
        self.rtt_s: float | None = None
        """Moving average of the round trip."""
        self.rtt_min_s: float | None = None

    def ok(self, rtt_s: float | None) -> None:
        """A good answer, `rtt_s` seconds after the question (None: not measured)."""
        self.state = Probes.OK
        self.misses = 0
        self.streak += 1
        if rtt_s is not None:
            self.rtt_s = rtt_s if self.rtt_s is None else self.rtt_s + RTT_GAIN * (rtt_s - self.rtt_s)
            self.rtt_min_s = rtt_s if self.rtt_min_s is None else min(self.rtt_min_s, rtt_s)

    def missed(self) -> None:
        """No good answer in time."""
        self.streak = 0
        self.misses += 1
        if self.misses >= self.policy.probe_misses:
            self.state = Probes.MISSED

    def refused(self) -> None:
        """The connection was refused."""
        self.streak = 0
        self.misses += 1
        self.state = Probes.REFUSED

    def reprieve(self) -> None:
        """Forget the misses: they were the asker's fault. A refusal stands."""
        self.misses = 0
        if self.state is Probes.MISSED:
            self.state = Probes.UNPROVEN
