"""What this replica itself sent to each pool, and how much of it the pool's own report has not seen yet.

A beat is a picture some milliseconds old. Between two beats the router would send everything to the cluster that
looked emptiest in the last one, so every dispatch counts at once and stops counting when a beat arrives that must
have seen it: dispatched at t, it reached the agent before the beat was taken if t < received - round trip. A request
that ends is the mirror image: the beat still counts it, so it is credited until the next one.
"""

from collections import deque

from gir.model.ids import ClusterId, ModelId

_PROMPT_TOKENS_GUESS = 1_000.0


class Dispatch:
    """One request on its way to, or running in, one pool. Settled exactly once by `Ledger.finish`."""

    __slots__ = ("at_s", "blocks_known", "cached_tokens", "cluster", "done", "first_seen", "hashes", "ledger", "model",
                 "prompt_tokens", "seen", "stream", "tokens")  # fmt: skip

    def __init__(
        self,
        *,
        cluster: ClusterId,
        model: ModelId,
        ledger: "Ledger",
        at_s: float,
        prompt_tokens: int,
        cached_tokens: float,
        stream: bool,
        hashes: tuple[int, ...] = (),
        blocks_known: int = 0,
    ) -> None:
        self.cluster = cluster
        self.model = model
        self.ledger = ledger
        self.at_s = at_s
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        """Prompt tokens believed to be in the cluster's prefix cache: what is predicted, as far as that came true."""
        self.tokens = max(0.0, prompt_tokens - cached_tokens)
        """Prompt tokens it makes the pool compute."""
        self.stream = stream
        self.hashes = hashes
        """Blocks of its prompt."""
        self.blocks_known = blocks_known
        """How many of them, from the head on, the cluster was believed to hold already."""
        self.seen = False
        """A beat has counted it."""
        self.first_seen = False
        """Its prefill is over, as far as this replica knows."""
        self.done = False

    @property
    def predicted_tokens(self) -> float:
        """Prompt tokens that the index has in the cluster's prefix cache, believed or not."""
        return self.blocks_known * self.prompt_tokens / len(self.hashes) if self.blocks_known else 0.0

    def __repr__(self) -> str:
        state = "done" if self.done else "streaming" if self.first_seen else "waiting"
        return f"<Dispatch {self.model} to {self.cluster}: {state}{', seen' if self.seen else ''}>"


class Ledger:
    """Own work in one pool (a base model in a cluster), set against the pool's last beat."""

    __slots__ = (
        "_beat_at_s", "_clear_at_s", "_credits", "_unseen", "_unseen_count", "delta", "foreign_tokens", "open",
        "pending_tokens", "prompt_tokens_mean", "started", "token_s", "unseen_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.delta = 0
        """Slots taken since the last beat, as far as this replica knows; negative when more ended than began."""
        self.open = 0
        """Own dispatches not yet finished."""
        self.pending_tokens = 0.0
        """Prompt tokens of own dispatches that have not produced a first token."""
        self.unseen_tokens = 0.0
        """The part of `pending_tokens` no beat has seen."""
        self.foreign_tokens = 0.0
        """Prompt tokens the last beat had waiting beyond what this replica had sent: others' work."""
        self.started = 0
        """Own requests the last beat counted that have produced a first token since: they wait no more."""
        self.prompt_tokens_mean = _PROMPT_TOKENS_GUESS
        self.token_s = 0.0
        """Seconds the pool needs for a prompt token, as last reported."""
        self._clear_at_s = 0.0
        self._unseen: deque[Dispatch] = deque()
        self._unseen_count = 0
        self._credits: deque[float] = deque()
        self._beat_at_s = float("-inf")

    def add(self, dispatch: Dispatch) -> None:
        """Count a request that leaves now."""
        self._unseen.append(dispatch)
        self._unseen_count += 1
        self.open += 1
        self.delta += 1
        self.pending_tokens += dispatch.tokens
        self.unseen_tokens += dispatch.tokens
        self._clear_at_s = max(self._clear_at_s, dispatch.at_s) + dispatch.tokens * self.token_s
        self.prompt_tokens_mean += 0.05 * (dispatch.prompt_tokens - self.prompt_tokens_mean)

    def first_token(self, dispatch: Dispatch) -> None:
        """Its prefill is over: it holds a slot and delays nobody's prefill any more."""
        if dispatch.first_seen:
            return
        dispatch.first_seen = True
        self.pending_tokens -= dispatch.tokens
        if dispatch.seen:
            self.started += 1
        else:
            self.unseen_tokens -= dispatch.tokens

    def finish(self, dispatch: Dispatch, now_s: float) -> bool:
        """Take a request out, whatever became of it; False when it was out already."""
        if dispatch.done:
            return False
        self.first_token(dispatch)
        dispatch.done = True
        self.open -= 1
        if dispatch.seen:
            self._credits.append(now_s)
        else:
            self._unseen_count -= 1
            # Not left to the next beat: thousands would pile up, each a fresh piece of memory for the next request.
            unseen = self._unseen
            while unseen and unseen[0].done:
                unseen.popleft()
        self.delta = self._unseen_count - len(self._credits)
        if not self.open:
            # Nothing runs: whatever rounding left behind is not work.
            self.pending_tokens = self.unseen_tokens = 0.0
        return True

    def own_wait_s(self, now_s: float) -> float:
        """Seconds until own prompts ahead are prefilled, at the pool's reported rate.

        Prompts in progress are partly done, so the wait runs down between first tokens; to half at most, because
        the reported rate may flatter.
        """
        whole_s = self.pending_tokens * self.token_s
        left_s = self._clear_at_s - now_s
        return whole_s if left_s >= whole_s else max(left_s, 0.5 * whole_s)

    def reconcile(self, beat_at_s: float, rtt_s: float, waiting_tokens: float, token_s: float) -> None:
        """Take a beat received at `beat_at_s` into account: drop what it must have seen, and find others' work in it.

        `waiting_tokens` are the prompt tokens it reports as not yet prefilled, `token_s` the seconds for each.
        """
        self.token_s = token_s
        if beat_at_s <= self._beat_at_s:
            return
        self._beat_at_s = beat_at_s
        unseen = self._unseen
        horizon_s = beat_at_s - rtt_s
        while unseen and (unseen[0].done or unseen[0].at_s < horizon_s):
            dispatch = unseen.popleft()
            if dispatch.done:
                continue
            if not dispatch.first_seen:
                self.unseen_tokens -= dispatch.tokens
            dispatch.seen = True
            self._unseen_count -= 1
            if not dispatch.stream:
                # Without a stream nobody tells when its prefill ended; from here the pool's own queue counts it.
                self.first_token(dispatch)
        ended = self._credits
        while ended and ended[0] < beat_at_s:
            ended.popleft()
        self.delta = self._unseen_count - len(ended)
        self.foreign_tokens = max(0.0, waiting_tokens - (self.pending_tokens - self.unseen_tokens))
        self.started = 0

    def __repr__(self) -> str:
        return f"<Ledger {self.open} open, {self.delta:+d} unseen, {self.pending_tokens:.0f} tokens pending>"


class Loads:
    """Ledgers of all pools."""

    __slots__ = ("_ledgers",)

    def __init__(self) -> None:
        self._ledgers: dict[tuple[ClusterId, ModelId], Ledger] = {}

    def of(self, cluster: ClusterId, base: ModelId) -> Ledger:
        """The ledger of a pool, made on first use."""
        key = (cluster, base)
        ledger = self._ledgers.get(key)
        if ledger is None:
            ledger = self._ledgers[key] = Ledger()
        return ledger

    def forget(self, known: frozenset[ClusterId]) -> None:
        """Drop idle ledgers of clusters that left the fleet, so that names coming and going cost no memory."""
        gone = [key for key, ledger in self._ledgers.items() if key[0] not in known and not ledger.open]
        for key in gone:
            del self._ledgers[key]

    def open(self, cluster: ClusterId) -> int:
        """Own dispatches running in a cluster now, over all its pools."""
        return sum(ledger.open for (name, _), ledger in self._ledgers.items() if name == cluster)

    def __len__(self) -> int:
        return len(self._ledgers)
