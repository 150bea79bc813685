"""What a pool has learned of its requests and of its pods' speed, and the waits that follow from it. Pure arithmetic.

Lengths are the traffic's and shared by all pods; speeds are each pod's own. A pod that was not measured yet counts as
the mean of those that were.
"""

from collections.abc import Iterable

from gir.model.prefix import BLOCK_BYTES, BYTES_PER_TOKEN
from gir.model.request import Usage
from tier1_agent.pods import Pod, Ticket
from tier1_agent.rates import Mean
from tier1_agent.scorers import slot_wait_s

PREFILL_TOKEN_GUESS_S = 1.0 / 5_000.0
"""Per prompt token, before anything was measured."""
TOKEN_GAP_GUESS_S = 0.03
OUTPUT_TOKENS_GUESS = 128.0


class Traffic:
    """Fading means over the requests of one pool, and estimates for its pods in seconds."""

    __slots__ = ("_prefill_mean_s", "_token_gap_mean_s", "bytes_per_token", "output_tokens", "reuse", "uncached_tokens")

    def __init__(self) -> None:
        self.output_tokens = Mean(0.98)
        self.uncached_tokens = Mean(0.98)
        self.bytes_per_token = Mean(0.98)
        self.reuse = Mean(0.98)
        """Share of prompt tokens that the index promised as cached."""
        self._prefill_mean_s = PREFILL_TOKEN_GUESS_S
        self._token_gap_mean_s = TOKEN_GAP_GUESS_S

    # What comes in.

    def dispatched(self, ticket: Ticket, tokens: float) -> None:
        """A request of `tokens` went to a pod."""
        if tokens:
            self.uncached_tokens.observe(ticket.uncached_tokens)
            self.reuse.observe(ticket.cached_tokens / tokens)

    def finished(self, ticket: Ticket, usage: Usage, now_s: float) -> None:
        """An engine told what a request came to."""
        output = usage.completion_tokens
        if output > 0:
            self.output_tokens.observe(output)
        if output > 1:
            first_s = ticket.first_token_s if ticket.first_token_s is not None else ticket.expected_first_s
            ticket.pod.token_gap_s.observe(max(0.0, now_s - first_s) / (output - 1))
        if usage.prompt_tokens > 0 and ticket.prompt_bytes:
            self.bytes_per_token.observe(ticket.prompt_bytes / usage.prompt_tokens)

    def compare(self, pods: Iterable[Pod]) -> None:
        """Means over the pods that were measured."""
        prefill, gaps = [], []
        for pod in pods:
            if pod.prefill.count:
                prefill.append(pod.prefill.per_token_s)
            if pod.token_gap_s.value is not None:
                gaps.append(pod.token_gap_s.value)
        self._prefill_mean_s = sum(prefill) / len(prefill) if prefill else PREFILL_TOKEN_GUESS_S
        self._token_gap_mean_s = sum(gaps) / len(gaps) if gaps else TOKEN_GAP_GUESS_S

    # What follows.

    @property
    def tokens_per_block(self) -> float:
        """Tokens in one block of the prefix index."""
        return BLOCK_BYTES / (self.bytes_per_token.value or BYTES_PER_TOKEN)

    def tokens(self, prompt_bytes: int) -> float:
        """Tokens of a prompt, by its size."""
        return prompt_bytes / (self.bytes_per_token.value or BYTES_PER_TOKEN)

    def prefill_s(self, pod: Pod) -> float:
        """Seconds per uncached prompt token."""
        return pod.prefill.per_token_s if pod.prefill.count else self._prefill_mean_s

    def hold_s(self, pod: Pod) -> float:
        """Seconds a request keeps a slot."""
        gap_s = pod.token_gap_s.value if pod.token_gap_s.value is not None else self._token_gap_mean_s
        prefill_s = pod.prefill.fixed_s + (self.uncached_tokens.value or 0.0) * self.prefill_s(pod)
        return prefill_s + (self.output_tokens.value or OUTPUT_TOKENS_GUESS) * gap_s

    def slot_wait_s(self, pod: Pod) -> float:
        """Until a slot is free for a newcomer."""
        return 0.0 if pod.load < pod.slots else slot_wait_s(pod.load, pod.slots, self.hold_s(pod))

    def backlog_s(self, pod: Pod) -> float:
        """Prefill ahead, own and others', from the start of the prompt in progress."""
        per_token_s, fixed_s = self.prefill_s(pod), pod.prefill.fixed_s
        own_s = pod.pending_tokens * per_token_s + len(pod.pending) * fixed_s
        if not pod.waiting_foreign:
            return own_s
        return own_s + pod.waiting_foreign * ((self.uncached_tokens.value or 0.0) * per_token_s + fixed_s)

    def kv_token_s(self, pod: Pod) -> float:
        """One token's share of the pod's memory for as long as a request stays; 0 when the engine does not say."""
        total = pod.signals.kv_tokens_total if pod.signals is not None else None
        return self.hold_s(pod) / total if total else 0.0

    def first_token_at_s(self, ticket: Ticket, now_s: float) -> float:
        """When the first token of a request that goes to its pod now should come."""
        pod = ticket.pod
        ahead_s = self.backlog_s(pod) - (now_s - pod.prefill_since_s if pod.pending else 0.0)
        own_s = pod.prefill.fixed_s + ticket.uncached_tokens * self.prefill_s(pod)
        return now_s + max(ahead_s, self.slot_wait_s(pod), 0.0) + own_s
