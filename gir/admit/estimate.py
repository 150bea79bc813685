"""How many tokens a request will cost, before an engine has counted them: learned per model from usage. Pure."""

from gir.model.ids import ModelId
from gir.model.request import InferenceRequest, Usage

BYTES_PER_TOKEN = 4.0
"""Assumed until a model has told better; English text in common vocabularies."""
OUTPUT_TOKENS = 256.0
"""Answer length assumed when the client names no cap and nothing is known."""
LEARN = 0.05
"""Weight of one observation."""
MODELS_MAX = 1_000
RATIO_MIN, RATIO_MAX = 0.5, 32.0


class TokenEstimator:
    """Bytes per prompt token and usual answer length, by model. Bounded; the model learned about first goes first."""

    __slots__ = ("_learned",)

    def __init__(self) -> None:
        self._learned: dict[ModelId, list[float]] = {}

    def prompt_tokens(self, model: ModelId, prompt_bytes: int) -> int:
        """Expected prompt tokens of `prompt_bytes` of prompt, at least 1."""
        learned = self._learned.get(model)
        return max(1, int(prompt_bytes / (learned[0] if learned else BYTES_PER_TOKEN)))

    def output_tokens(self, model: ModelId, cap: int | None, choices: int = 1) -> int:
        """Tokens to reserve for so many answers: the client's cap, or what this model's answers usually take."""
        if cap is not None:
            return cap * choices
        learned = self._learned.get(model)
        return int(learned[1] if learned else OUTPUT_TOKENS) * choices

    def expected(self, request: InferenceRequest) -> tuple[int, int]:
        """Tokens to reserve for the prompt and the answer of `request`."""
        if request.prompt_bytes:
            prompt = self.prompt_tokens(request.model, request.prompt_bytes)
        else:
            prompt = request.prompt_tokens_estimate
        return prompt, self.output_tokens(request.model, request.output_tokens_max, request.choices)

    def observe(self, model: ModelId, prompt_bytes: int, usage: Usage) -> None:
        """Learn from what an engine counted. Estimates teach nothing."""
        if usage.estimated or usage.prompt_tokens <= 0 or prompt_bytes <= 0:
            return
        learned = self._learned.get(model)
        if learned is None:
            while len(self._learned) >= MODELS_MAX:
                del self._learned[next(iter(self._learned))]
            learned = self._learned[model] = [BYTES_PER_TOKEN, OUTPUT_TOKENS]
        ratio = min(max(prompt_bytes / usage.prompt_tokens, RATIO_MIN), RATIO_MAX)
        learned[0] += LEARN * (ratio - learned[0])
        learned[1] += LEARN * (usage.completion_tokens - learned[1])
