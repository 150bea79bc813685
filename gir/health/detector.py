"""Beat detector: what the beats of one cluster, and their absence, say about it.

Two rules. Everything that affects a transition is in `TABLE`; and the only time that counts is the receiver's
monotonic clock, read when the beat came in. The sender's clock never enters, so it may be wrong by years.

States
    UNHEARD  a new boot epoch said Hello, no beat of it yet: a process lives, its capacity is unknown
    FRESH    a beat came within `suspect_after_s`
    SUSPECT  silence longer than that, or the stream broke: no new work while others have room
    DEAD     silence longer than `dead_after_s`
    GONE     the agent said goodbye; nothing of that boot epoch is believed any more

Messages are ordered by (epoch, seq), whatever the order of their arrival: a Hello stands before every beat of its
epoch, a Goodbye after every one. A message that does not stand after the last accepted one changes nothing, not even
the silence. So the state after any shuffle, with any duplicates, is the state of the greatest (epoch, seq).

An epoch may start lower than the last one when the agent draws it from a clock that was set back. It is believed once
the higher epoch has been silent for `dead_after_s`: by then nobody is left who could be overruled.
"""

import enum
import sys

from gir.model.policy import HealthPolicy

SEQ_LAST = sys.maxsize
"""Stands for the Goodbye of an epoch: greater than the number of any beat."""


class Beats(enum.Enum):
    """What the beats say."""

    UNHEARD = "unheard"
    FRESH = "fresh"
    SUSPECT = "suspect"
    DEAD = "dead"
    GONE = "gone"


class Signal(enum.Enum):
    """What can happen to a beat stream."""

    HELLO = "hello"
    """First Hello of a new epoch."""
    BEAT = "beat"
    LOST = "lost"
    """The last stream of the current epoch broke."""
    SILENT = "silent"
    """No beat for `suspect_after_s`."""
    SILENT_LONG = "silent_long"
    """No beat for `dead_after_s`."""
    GOODBYE = "goodbye"


_U, _F, _S, _D, _G = Beats.UNHEARD, Beats.FRESH, Beats.SUSPECT, Beats.DEAD, Beats.GONE

TABLE: dict[Signal, dict[Beats, Beats]] = {
    # Whatever the epoch before it was, its state says nothing about this one.
    Signal.HELLO: {_U: _U, _F: _U, _S: _U, _D: _U, _G: _U},
    Signal.BEAT: {_U: _F, _F: _F, _S: _F, _D: _F, _G: _F},
    Signal.LOST: {_U: _S, _F: _S, _S: _S, _D: _D, _G: _G},
    Signal.SILENT: {_U: _S, _F: _S, _S: _S, _D: _D, _G: _G},
    # A sweep may come late and skip SUSPECT.
    Signal.SILENT_LONG: {_U: _D, _F: _D, _S: _D, _D: _D, _G: _G},
    Signal.GOODBYE: {_U: _G, _F: _G, _S: _G, _D: _G, _G: _G},
}


class BeatDetector:
    """State of one cluster's beats. Times are monotonic seconds of this process."""

    __slots__ = ("epoch", "heard_s", "policy", "seq", "state", "streak", "streams")

    def __init__(self, policy: HealthPolicy, *, now_s: float) -> None:
        self.policy = policy
        self.state = Beats.UNHEARD
        self.epoch = -1
        self.seq = -1
        self.heard_s = now_s
        """When the last accepted message came, later by every pause of this process since."""
        self.streak = 0
        """Beats accepted since the state last was other than FRESH."""
        self.streams = 0
        """Open streams of the current epoch: a reconnecting agent may have two for a moment."""

    def hello(self, epoch: int, now_s: float) -> str:
        """Open a stream of `epoch`. Returns '' or why the sender is not believed."""
        if epoch < self.epoch and self.silence_s(now_s) < self.policy.dead_after_s:
            return f"epoch {epoch} is older than {self.epoch}, which spoke {self.silence_s(now_s):.1f}s ago"
        if epoch == self.epoch:
            if self.seq == SEQ_LAST:
                return f"epoch {epoch} has said goodbye"
            self.streams += 1
            return ""
        self.epoch, self.seq, self.streams, self.heard_s = epoch, -1, 1, now_s
        self._move(Signal.HELLO)
        return ""

    def beat(self, epoch: int, seq: int, now_s: float) -> str:
        """Take one beat. Returns '' or why it was ignored."""
        if (epoch, seq) <= (self.epoch, self.seq):
            return f"({epoch}, {seq}) is not after ({self.epoch}, {self.seq})"
        if epoch > self.epoch:
            self.streams = 1
        self.epoch, self.seq, self.heard_s = epoch, seq, now_s
        self._move(Signal.BEAT)
        self.streak += 1
        return ""

    def goodbye(self, epoch: int, now_s: float) -> str:
        """Take the last word of `epoch`. Returns '' or why it was ignored."""
        if epoch < self.epoch:
            return f"goodbye of epoch {epoch}, but {self.epoch} is speaking"
        self.epoch, self.seq, self.heard_s, self.streams = epoch, SEQ_LAST, now_s, 0
        self._move(Signal.GOODBYE)
        return ""

    def stream_lost(self, epoch: int, *, pardoned: bool = False) -> None:
        """One stream of `epoch` broke. The last one of the current epoch makes SUSPECT at once.

        `pardoned`: this process was paused a moment ago and the agent gave up on it, so only silence counts.
        """
        if epoch != self.epoch:
            return
        self.streams = max(0, self.streams - 1)
        if not self.streams and not pardoned:
            self._move(Signal.LOST)

    def tick(self, now_s: float, *, pardoned: bool = False) -> None:
        """Let silence speak, unless it is `pardoned`: agents may still be on their way back to a paused process."""
        if pardoned:
            return
        silence_s = self.silence_s(now_s)
        if silence_s > self.policy.dead_after_s:
            self._move(Signal.SILENT_LONG)
        elif silence_s > self.policy.suspect_after_s:
            self._move(Signal.SILENT)

    def grant(self, gap_s: float, now_s: float) -> None:
        """Forget `gap_s` seconds in which this process could not listen."""
        self.heard_s = min(now_s, self.heard_s + gap_s)

    def reprieve(self, now_s: float) -> None:
        """Start the silence anew: it was the listener's fault. A goodbye stands."""
        if self.state in (Beats.SUSPECT, Beats.DEAD):
            self.state, self.heard_s = Beats.FRESH, now_s

    def silence_s(self, now_s: float) -> float:
        """Seconds since the last accepted message."""
        return now_s - self.heard_s

    def _move(self, signal: Signal) -> None:
        self.state = TABLE[signal][self.state]
        if self.state is not Beats.FRESH:
            self.streak = 0
