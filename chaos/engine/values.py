"""What goes into an engine and what comes out of it."""

import msgspec

from chaos.engine.gpus import GpuProfile


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. Times come from `gpu`; scale the profile to run faster than life."""

    gpu: GpuProfile
    slots_max: int = 32
    """Sequences in the batch at once (vLLM's max_num_seqs)."""
    kv_blocks: int = 8_192
    block_tokens: int = 16
    step_tokens_max: int = 2_048
    """Tokens in one step: decoding sequences and prefill chunks together (vLLM's max_num_batched_tokens)."""
    chunked_prefill: bool = True
    """False: a step prefills whole prompts and nobody decodes meanwhile, as older engines do."""
    prefix_cache: bool = True
    adapter_slots: int = 0
    adapter_load_s: float = 0.5
    each_token: bool = True
    """Report every token; False reports first tokens and ends only, and is much cheaper."""


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `block_hashes` are chained over whole blocks of the prompt, head first; () shares nothing."""

    prompt_tokens: int
    output_tokens: int
    """0 for embeddings: ends with its prefill."""
    block_hashes: tuple[int, ...] = ()
    adapter: str | None = None


class TokenEvent(msgspec.Struct, frozen=True):
    """`tokens` new tokens of request `id` at `at_s`; `total` so far. `finished` closes it."""

    id: int
    at_s: float
    tokens: int
    total: int
    first: bool
    finished: bool
    cached_tokens: int


class Counters(msgspec.Struct, kw_only=True):
    """What an engine has done since it started."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    finished: int = 0
    cancelled: int = 0
    preempted: int = 0


class EngineMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """An engine at one moment."""

    running: int
    waiting: int
    kv_usage: float
    """Share of blocks held by running sequences, 0 to 1."""
    kv_blocks_used: int
    kv_blocks_total: int
    adapters_running: tuple[str, ...]
    adapters_waiting: tuple[str, ...]
    adapters_resident: tuple[str, ...]
    counters: Counters
