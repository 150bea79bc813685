"""What a pool has learned of its requests and of its pods' speed, and the waits that follow from it. Pure arithmetic.

Lengths are the traffic's and shared by all pods; speeds are each pod's own. A pod that was not measured yet counts as
the mean of those that were.
"""

import math
from collections.abc import Sequence

from gir.model.prefix import BLOCK_BYTES, BYTES_PER_TOKEN
from gir.model.request import Usage
from tier1_agent.pods import Pod, Ticket
from tier1_agent.rates import TOKENS_TELLING, Mean, shrink
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

    def compare(self, pods: Sequence[Pod], now_s: float) -> None:
        """Weigh the pods' measurements against one another; means stand in for those that were not measured."""
        measured = [pod for pod in pods if pod.prefill.count]
        if measured:
            self._weigh(measured, now_s)
        prefill = [self.prefill_s(pod) for pod in measured]
        gaps = [pod.token_gap_s.value for pod in pods if pod.token_gap_s.value is not None]
        self._prefill_mean_s = sum(prefill) / len(prefill) if prefill else PREFILL_TOKEN_GUESS_S
        self._token_gap_mean_s = sum(gaps) / len(gaps) if gaps else TOKEN_GAP_GUESS_S

    def _weigh(self, measured: Sequence[Pod], now_s: float) -> None:
        """Believe a speed for each pod, and one split into fixed and per token for all of them.

        Compared is what a prompt of typical length takes, as logarithms: pods differ by factors, and so does noise.
        Single pods see too few lengths to tell the split; guessed apart, equal pods would be preferred by length.
        """
        tokens = max(TOKENS_TELLING, self.uncached_tokens.value or 0.0)
        noise = sum(pod.prefill.noise for pod in measured) / len(measured)
        typical = [math.log(max(1e-6, pod.prefill.expect_s(tokens))) for pod in measured]
        weights = [max(1e-3, pod.prefill.weight(now_s)) for pod in measured]
        variances = [(noise + 1e-3) / weight for weight in weights]
        fitted = [(weight, pod.prefill) for weight, pod in zip(weights, measured, strict=True) if pod.prefill.fitted]
        whole_s = sum(weight * line.expect_s(tokens) for weight, line in fitted)
        fixed = sum(weight * line.fixed_s for weight, line in fitted) / whole_s if whole_s else 0.0
        for pod, believed in zip(measured, shrink(typical, variances), strict=True):
            took_s = math.exp(believed)
            pod.believed = (fixed * took_s, (1.0 - fixed) * took_s / tokens)

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
        if pod.believed is not None:
            return pod.believed[1]
        return pod.prefill.per_token_s if pod.prefill.count else self._prefill_mean_s

    def fixed_s(self, pod: Pod) -> float:
        """Seconds of a prefill that do not depend on its length."""
        return pod.believed[0] if pod.believed is not None else pod.prefill.fixed_s

    def hold_s(self, pod: Pod) -> float:
        """Seconds a request keeps a slot."""
        gap_s = pod.token_gap_s.value if pod.token_gap_s.value is not None else self._token_gap_mean_s
        prefill_s = self.fixed_s(pod) + (self.uncached_tokens.value or 0.0) * self.prefill_s(pod)
        return prefill_s + (self.output_tokens.value or OUTPUT_TOKENS_GUESS) * gap_s

    def slot_wait_s(self, pod: Pod) -> float:
        """Until a slot is free for a newcomer."""
        return 0.0 if pod.load < pod.slots else slot_wait_s(pod.load, pod.slots, self.hold_s(pod))

    def backlog_s(self, pod: Pod) -> float:
        """Prefill ahead, own and others', from the start of the prompt in progress."""
        per_token_s, fixed_s = self.prefill_s(pod), self.fixed_s(pod)
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
        own_s = self.fixed_s(pod) + ticket.uncached_tokens * self.prefill_s(pod)
        return now_s + max(ahead_s, self.slot_wait_s(pod), 0.0) + own_s
