"""Which pod holds which prompt prefix, as far as this agent can know.

Each pod has a model of its engine's cache: the block hashes of what was sent there, least recently used first, bounded
by the KV memory the engine reports. An owner mask per block answers "who holds the first n blocks" for all pods in one
walk.

Heads are evicted last: touching a prompt marks its tail first and its head last, so the oldest entry of a pod is always
the tail of something and never a head from under its tail. Matches count only from the head and only while unbroken,
which is how engines reuse memory.

The engine has the last word: what it reports as cached, against what was predicted, resizes the model of its cache.
"""

from collections import OrderedDict
from collections.abc import Sequence

ENTRY_BYTES = 200
"""Cost of one (pod, block) entry: measured 145 to 160 bytes, and room for hash tables that double as they grow."""
_SHRINK = 0.9
_GROW = 1.02


class PrefixIndex:
    """Owner masks over the pods of one pool; pods are small integers (bits), given and taken back by the pool.

    `bytes_max` bounds the memory of all pods together; each pod is bounded by its own `capacity` in blocks besides.
    """

    __slots__ = ("_capacity", "_capacity_max", "_held", "_owners", "_share", "bytes_max", "evicted")

    def __init__(self, bytes_max: int = 64 * 1024 * 1024) -> None:
        self.bytes_max = bytes_max
        self.evicted = 0
        self._owners: dict[int, int] = {}
        self._held: dict[int, OrderedDict[int, float]] = {}
        self._capacity: dict[int, int] = {}
        self._capacity_max: dict[int, int] = {}
        self._share = 0

    def __repr__(self) -> str:
        return f"<PrefixIndex {len(self._owners)} blocks, {self.entries} entries in {len(self._held)} pods>"

    @property
    def entries(self) -> int:
        """(pod, block) pairs held, over all pods."""
        return sum(map(len, self._held.values()))

    def blocks(self, pod: int) -> int:
        """Blocks the pod is thought to hold."""
        return len(self._held[pod])

    def add(self, pod: int, capacity_blocks: int | None) -> None:
        """Start an empty cache for `pod` (again: a new incarnation holds nothing)."""
        self.remove(pod)
        self._held[pod] = OrderedDict()
        self._share = self.bytes_max // (ENTRY_BYTES * len(self._held))
        self.set_capacity(pod, capacity_blocks)
        for other in self._held:
            self._evict(other)  # its share is smaller now, and an idle pod learns nothing that would make it notice

    def set_capacity(self, pod: int, capacity_blocks: int | None) -> None:
        """Bound the pod's cache; None (unknown) leaves only the byte budget. What `judge` has learned is kept."""
        limit = capacity_blocks if capacity_blocks is not None else self.bytes_max // ENTRY_BYTES
        if self._capacity_max.get(pod) != limit:
            self._capacity[pod] = self._capacity_max[pod] = limit

    def capacity(self, pod: int) -> int:
        """Blocks the pod may hold in this model now."""
        return min(self._capacity[pod], self._share)

    def remove(self, pod: int) -> None:
        """Forget the pod and all it held."""
        for block in self._held.pop(pod, ()):
            self._disown(block, 1 << pod)
        self._capacity.pop(pod, None)
        self._capacity_max.pop(pod, None)
        self._share = self.bytes_max // (ENTRY_BYTES * max(1, len(self._held)))

    def match(self, hashes: Sequence[int]) -> dict[int, int]:
        """Leading blocks of `hashes` that each pod holds; pods that hold none are left out."""
        find = self._owners.get
        mask = find(hashes[0], 0) if hashes else 0
        found: dict[int, int] = {}
        depth = 0
        for depth, block in enumerate(hashes):  # its last value is the length of the longest match
            still = mask & find(block, 0)
            if still != mask:
                _credit(found, mask ^ still, depth)
                mask = still
            if not mask:
                return found
        _credit(found, mask, depth + 1)
        return found

    def learn(self, pod: int, hashes: Sequence[int], now_s: float) -> None:
        """`pod` now holds this prompt: touched tail first, head last."""
        held = self._held[pod]
        limit = self.capacity(pod)
        owners, bit = self._owners, 1 << pod
        for block in reversed(hashes[:limit]):
            if block in held:
                held.move_to_end(block)
            else:
                owners[block] = owners.get(block, 0) | bit
            held[block] = now_s
        if len(held) > limit:
            self._evict(pod)

    def forget(self, pod: int, hashes: Sequence[int], *, beyond: int) -> None:
        """The prompt never got there: drop its blocks beyond the first `beyond`, which were there before it."""
        held, bit = self._held[pod], 1 << pod
        for block in hashes[beyond:]:
            if block in held:
                del held[block]
                self._disown(block, bit)

    def judge(self, pod: int, predicted_blocks: float, real_blocks: float) -> None:
        """Compare a prediction with what the engine found and resize the model of its cache.

        Finding less means the engine evicts sooner than we think (its cache also holds answers, and other senders'
        prompts), finding more means later. Down fast, up slowly: a wrong promise of reuse costs more than a missed one.
        """
        held = self._held[pod]
        if real_blocks < predicted_blocks - 1.0 - 0.05 * predicted_blocks:
            self._capacity[pod] = min(self._capacity[pod], int(_SHRINK * max(len(held), 1)))
            self._evict(pod)
        elif real_blocks > predicted_blocks + 1.0 or self._is_full(pod):
            self._capacity[pod] = min(self._capacity_max[pod], int(self._capacity[pod] * _GROW) + 1)

    def victim_at_s(self, pod: int) -> float | None:
        """When the block that would be evicted next was last used; None while there is room."""
        return next(iter(self._held[pod].values()), None) if self._is_full(pod) else None

    def _is_full(self, pod: int) -> bool:
        return len(self._held[pod]) >= self.capacity(pod)

    def _evict(self, pod: int) -> None:
        held, bit, limit = self._held[pod], 1 << pod, self.capacity(pod)
        while len(held) > limit:
            self._disown(held.popitem(last=False)[0], bit)
            self.evicted += 1

    def _disown(self, block: int, bit: int) -> None:
        left = self._owners[block] & ~bit
        if left:
            self._owners[block] = left
        else:
            del self._owners[block]


def _credit(found: dict[int, int], mask: int, blocks: int) -> None:
    """Note `blocks` for every pod in `mask`."""
    while mask:
        low = mask & -mask
        found[low.bit_length() - 1] = blocks
        mask ^= low
