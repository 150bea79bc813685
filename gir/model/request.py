"""What a request is, once its bytes have been read: the frozen values every stage works on."""

import enum

import msgspec

from gir.model.ids import ModelId, RegionId, RequestId, TenantId


class Criticality(enum.IntEnum):
    """Priority class: sign of the Inference Extension's integer priority (> 0, 0, < 0)."""

    SHEDDABLE = -1
    STANDARD = 0
    CRITICAL = 1

    label: str
    """Name as it stands in headers, metrics and error messages."""

    def __init__(self, _: int) -> None:
        self.label = self._name_.lower()


class Api(enum.StrEnum):
    """The API a path speaks; it decides how the body is peeked, how a stream ends and how usage is read."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"
    RESPONSES = "responses"
    MESSAGES = "messages"
    RERANK = "rerank"
    SCORE = "score"
    TOKENIZE = "tokenize"
    OTHER = "other"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, as authentication established it.

    `models_allowed` and `regions_allowed`: None means any. `criticality_max` caps what a request may claim;
    `criticality_default` is used when it claims nothing.
    """

    tenant: TenantId
    key_id: str
    """Stable, non-secret name of the credential: the key's id or the token's subject."""
    models_allowed: frozenset[ModelId] | None = None
    regions_allowed: frozenset[RegionId] | None = None
    criticality_max: Criticality = Criticality.CRITICAL
    criticality_default: Criticality = Criticality.STANDARD
    trusted: bool = False
    """May set control headers (`x-gir-*`), such as criticality or a cluster pin."""


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One client request as placement and admission see it. Times are seconds of the monotonic clock."""

    request_id: RequestId
    api: Api
    path: str
    """Path as it came, without the query string."""
    model: ModelId
    """Model after alias and canary rewriting: what the cluster is asked for."""
    model_asked: ModelId
    """Model the client named."""
    principal: Principal
    criticality: Criticality = Criticality.STANDARD
    stream: bool = False
    prompt_tokens_estimate: int = 0
    output_tokens_max: int | None = None
    """Client's own cap on output tokens of each choice; None when it named none."""
    choices: int = 1
    """Answers it wants: `n`, for each of its prompts."""
    prefix_hashes: tuple[int, ...] = ()
    """Chained 64-bit hashes of the prompt's blocks, head first (`gir.model.prefix`)."""
    prompt_bytes: int = 0
    session_key: str | None = None
    """Stickiness hint: session header, `prompt_cache_key`, conversation id or `user`."""
    cluster_pinned: str | None = None
    """Cluster a trusted caller or a tester insists on."""
    arrived_s: float = 0.0
    deadline_s: float = float("inf")
    hops: int = 0
    """GIR routers this request has already crossed."""
    body_bytes: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens an engine reported (or, when `estimated`, that were counted from what was delivered)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False

    def plus(self, other: "Usage") -> "Usage":
        """Sum field by field; estimated if either part is."""
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            estimated=self.estimated or other.estimated,
        )
