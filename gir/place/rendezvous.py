"""Weighted rendezvous hashing: every replica names the same home for a key without talking to the others.

Member i of weight w_i draws u_i in (0, 1) from a hash of (key, i); the greatest -w_i / ln(u_i) wins. A member that
joins or leaves moves only the keys it wins or loses, in proportion to its weight, whatever the others weigh. Keys fall
into 65,536 buckets, and the order of a bucket is computed when first asked for.
"""

import math
from heapq import nlargest

import xxhash

from gir.model.ids import ClusterId

_BUCKET_MASK = 0xFFFF
_ORDER_MAX = 16
"""Members kept of a bucket's order: enough to walk past the overloaded and the unhealthy."""
_UNIT = 1.0 / (1 << 64)


class Rendezvous:
    """Home order of keys over weighted members (weights are capacities, in slots; zero means never)."""

    __slots__ = ("_members", "_orders", "weights")

    def __init__(self, weights: tuple[tuple[ClusterId, float], ...]) -> None:
        self.weights = weights
        self._members = tuple(
            (name, xxhash.xxh3_64_intdigest(name.encode()), weight) for name, weight in weights if weight > 0
        )
        self._orders: dict[int, tuple[ClusterId, ...]] = {}

    def order(self, key: int) -> tuple[ClusterId, ...]:
        """Members in order of preference for `key`, at most 16."""
        bucket = key & _BUCKET_MASK
        order = self._orders.get(bucket)
        if order is None:
            order = self._orders[bucket] = self._draw(bucket)
        return order

    def _draw(self, bucket: int) -> tuple[ClusterId, ...]:
        spelled = bucket.to_bytes(8, "little")
        digest, log = xxhash.xxh3_64_intdigest, math.log
        scored = [
            (weight / (-log((digest(spelled, seed) + 0.5) * _UNIT) or _UNIT), name)
            for name, seed, weight in self._members
        ]
        return tuple(name for _, name in nlargest(_ORDER_MAX, scored))

    def __repr__(self) -> str:
        return f"<Rendezvous {len(self._members)} members, {len(self._orders)} buckets known>"


def key_of(text: str) -> int:
    """Stable 64-bit key of a session name."""
    return xxhash.xxh3_64_intdigest(text.encode())
