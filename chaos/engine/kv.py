"""KV blocks of one engine, with a prefix cache: what is held, what may be reused, what goes first.

A block is *held* (by running sequences: shared prompt blocks with a count, private ones by number), *idle* (nobody
holds it, its content may be reused) or free. Idle blocks are evicted least recently used first, and of one prompt the
tail before the head, so what other prompts may share lives longest.
"""

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """Counts blocks; `hashes` are chained block hashes of a prompt, head first."""

    __slots__ = ("_holders", "_idle", "_private", "blocks_total")

    def __init__(self, blocks_total: int) -> None:
        self.blocks_total = blocks_total
        self._holders: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    def __repr__(self) -> str:
        return f"<KvCache {self.blocks_used}/{self.blocks_total} held, {len(self._idle)} idle>"

    @property
    def blocks_used(self) -> int:
        """Blocks held by running sequences."""
        return len(self._holders) + self._private

    @property
    def blocks_free(self) -> int:
        """Blocks that can be had now: free ones and idle ones (by eviction)."""
        return self.blocks_total - len(self._holders) - self._private

    @property
    def blocks_idle(self) -> int:
        """Blocks nobody holds whose content could still be reused."""
        return len(self._idle)

    def cached(self, hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt are here already."""
        holders, idle = self._holders, self._idle
        for count, block in enumerate(hashes):
            if block not in holders and block not in idle:
                return count
        return len(hashes)

    def take(self, hashes: Sequence[int], private: int, *, spare: int = 0) -> bool:
        """Hold a prompt's blocks and `private` more; False, and nothing taken, if that left fewer than `spare`."""
        holders, idle = self._holders, self._idle
        fresh = sum(block not in holders for block in hashes)
        if fresh + private + spare > self.blocks_free:
            return False
        for block in hashes:
            holding = holders.get(block, 0)
            if not holding:
                idle.pop(block, None)
            holders[block] = holding + 1
        self._private += private
        self._evict()
        return True

    def grow(self, private: int) -> bool:
        """Hold `private` more blocks; False when there are not enough."""
        if private > self.blocks_free:
            return False
        self._private += private
        self._evict()
        return True

    def release(self, hashes: Sequence[int], private: int) -> None:
        """Let go of what `take` and `grow` gave. Prompt blocks stay for reuse until somebody needs the room."""
        holders, idle = self._holders, self._idle
        self._private -= private
        for block in reversed(hashes):
            holding = holders[block] - 1
            if holding:
                holders[block] = holding
            else:
                del holders[block]
                idle[block] = None

    def clear(self) -> None:
        """Forget everything, as a restarted engine has."""
        self._holders.clear()
        self._idle.clear()
        self._private = 0

    def _evict(self) -> None:
        excess = len(self._idle) + self.blocks_used - self.blocks_total
        for _ in range(excess):
            self._idle.popitem(last=False)
