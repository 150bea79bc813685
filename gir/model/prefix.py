"""Chained block hashes of a prompt: equal prefixes give equal leading hashes, on every replica and in both tiers.

The hash runs over the prompt's bytes as the client sent them (the raw JSON of `messages`, `prompt` or `input`): a
conversation that grows keeps its leading bytes, so no tokenizer is needed. Block hash i is
xxh3_64(block_i, seed = hash_(i-1)); the chain starts from a hash of the model name, so equal text for two models never
matches. Only whole blocks count.
"""

import xxhash

BLOCK_BYTES = 512
"""About 128 tokens of English: vLLM's block times eight; small enough to tell system prompts apart."""
CLUSTER_BLOCK_BYTES = 2048
"""The router's block, about 512 tokens: between clusters only long prefixes are worth a detour, and each block costs
every request a hash and a look-up."""
BLOCKS_MAX = 1024
"""Half a megabyte of prompt; what lies beyond adds nothing to a routing decision."""
BYTES_PER_TOKEN = 4.0
"""First guess for prompts nobody has measured yet; admission learns better values per model."""


def prefix_hashes(
    model: str, prompt: bytes | memoryview, *, block_bytes: int = BLOCK_BYTES, blocks_max: int = BLOCKS_MAX
) -> tuple[int, ...]:
    """Chained hashes of the whole blocks of `prompt`, head first; at most `blocks_max` of them."""
    digest = xxhash.xxh3_64_intdigest
    blocks = min(len(prompt) // block_bytes, blocks_max)
    if not blocks:
        return ()
    chain = digest(model.encode())
    hashes = []
    for start in range(0, blocks * block_bytes, block_bytes):
        chain = digest(prompt[start : start + block_bytes], chain)
        hashes.append(chain)
    return tuple(hashes)
