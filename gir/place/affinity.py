"""Which cluster probably holds which prompt prefix, from what this replica sent where.

Every dispatched prompt teaches its chained block hashes (`gir.model.prefix`) to the index. A chained hash stands for
everything before it, so a cluster that has block i has all blocks before i, and the longest match of a prompt is found
by bisection. Memory is two generations of dictionaries: new and touched blocks go to the young one, and when that is
full the old one is dropped whole. Touching a prompt touches all its leading blocks, so heads outlive tails and the
ladder of a prefix never has a missing rung.

The index is a prediction, made when a request leaves so that the next one can follow it. One that fails before its
first token is taken back. What engines report as cached tokens corrects it: each cluster carries a trust, the share of
predicted tokens that really were cached, and its credits are scaled by it. Losing the index costs affinity, nothing
else (`gir.place.rendezvous` keeps replicas in rough agreement without it).
"""

from gir.model.ids import ClusterId

_CLUSTERS_MAX = 4_096
"""Distinct clusters an index may ever have learned before it starts afresh: bounds the width of the bit sets."""
_OWNERS_MAX = 8
"""Distinct match depths looked up for one prompt: clusters beyond hold shorter pieces, worth less each."""
_TRUST_MEMORY = 0.05
_TRUST_SILENT = 0.5
"""Trust in a cluster that never reported a cached token: perhaps it does not report, perhaps it does not cache."""
_SILENT_SAMPLES = 20


class AffinityIndex:
    """Bounded map from prompt blocks to the clusters they were sent to."""

    __slots__ = ("_bits", "_clusters", "_gone", "_old", "_young", "blocks_max")

    def __init__(self, blocks_max: int) -> None:
        self.blocks_max = blocks_max
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._bits: dict[ClusterId, int] = {}
        self._clusters: list[ClusterId] = []
        self._gone = 0

    def learn(self, cluster: ClusterId, hashes: tuple[int, ...]) -> None:
        """Remember that `cluster` has the prompt made of `hashes` (head first)."""
        if not hashes or self.blocks_max < 2:
            return
        bit = self._bit(cluster)
        if len(self._young) + len(hashes) > self.blocks_max // 2:
            self._old, self._young = self._young, {}
            hashes = hashes[: self.blocks_max // 2]
        young = self._young
        known = young.get
        for block in hashes:
            young[block] = known(block, 0) | bit

    def unlearn(self, cluster: ClusterId, hashes: tuple[int, ...], *, beyond: int) -> None:
        """The prompt made of `hashes` never got there: take back all but the first `beyond` blocks."""
        keep = ~self._bits.get(cluster, 0)
        for block in hashes[beyond:]:
            for generation in (self._young, self._old):
                if block in generation:
                    generation[block] &= keep

    def match(self, hashes: tuple[int, ...]) -> dict[ClusterId, int]:
        """Leading blocks each cluster is predicted to hold, deepest first; clusters with none are left out."""
        found: dict[ClusterId, int] = {}
        if not hashes or not self._bits:
            return found
        taken = self._gone
        depth = len(hashes)
        for _ in range(_OWNERS_MAX):
            depth, owners = self._deepest(hashes, depth, taken)
            if not depth:
                break
            taken |= owners
            while owners:
                lowest = owners & -owners
                found[self._clusters[lowest.bit_length() - 1]] = depth
                owners ^= lowest
            depth -= 1
        return found

    def forget(self, cluster: ClusterId) -> None:
        """A cluster left the fleet: what it held is nobody's now."""
        bit = self._bits.pop(cluster, 0)
        self._gone |= bit

    def clear(self) -> None:
        """Lose everything, as a restart would."""
        self._young, self._old, self._bits, self._clusters, self._gone = {}, {}, {}, [], 0

    def clusters(self) -> tuple[ClusterId, ...]:
        """Clusters the index knows something about."""
        return tuple(self._bits)

    def __len__(self) -> int:
        """Blocks held; a block in both generations counts twice, as it does in memory."""
        return len(self._young) + len(self._old)

    def __repr__(self) -> str:
        return f"<AffinityIndex {len(self)} of {self.blocks_max} blocks, {len(self._bits)} clusters>"

    def _deepest(self, hashes: tuple[int, ...], depth_max: int, without: int) -> tuple[int, int]:
        """Greatest depth <= `depth_max` at which someone not in `without` has the block, and who that is."""
        young, old = self._young.get, self._old.get
        low, high, owners = 0, depth_max, 0
        while low < high:
            middle = (low + high + 1) // 2
            block = hashes[middle - 1]
            there = (young(block, 0) | old(block, 0)) & ~without
            if there:
                low, owners = middle, there
            else:
                high = middle - 1
        return low, owners

    def _bit(self, cluster: ClusterId) -> int:
        bit = self._bits.get(cluster)
        if bit is None:
            if len(self._clusters) >= _CLUSTERS_MAX:
                self.clear()
            bit = self._bits[cluster] = 1 << len(self._clusters)
            self._clusters.append(cluster)
        return bit


class Trust:
    """How far predictions of cached tokens have come true in one cluster."""

    __slots__ = ("_predicted", "_reported", "hits_reported", "samples")

    def __init__(self) -> None:
        self.samples = 0
        self.hits_reported = False
        self._predicted = 0.0
        self._reported = 0.0

    def observe(self, predicted_tokens: float, reported_tokens: int) -> None:
        """Compare one request's prediction with the engine's report (tokens)."""
        if reported_tokens > 0:
            self.hits_reported = True
        if predicted_tokens <= 0.0:
            return
        self.samples += 1
        keep = 1.0 - max(_TRUST_MEMORY, 1.0 / self.samples)
        self._predicted = keep * self._predicted + (1.0 - keep) * predicted_tokens
        # A report above the prediction is another replica's doing, not a merit of this one's index.
        self._reported = keep * self._reported + (1.0 - keep) * min(predicted_tokens, reported_tokens)

    @property
    def value(self) -> float:
        """Share of a predicted credit to believe, 0 to 1. Full until there is something to judge by."""
        if self.samples < _SILENT_SAMPLES:
            return 1.0
        if not self.hits_reported:
            return _TRUST_SILENT
        return self._reported / self._predicted if self._predicted > 0.0 else 1.0

    @property
    def divergence(self) -> float | None:
        """Predicted minus reported tokens as a share of predicted; None while unknown or unreported."""
        if not self.samples or not self.hits_reported:
            return None
        return 1.0 - self._reported / self._predicted if self._predicted > 0.0 else 0.0

    def __repr__(self) -> str:
        return f"<Trust {self.value:.2f} after {self.samples} samples>"
