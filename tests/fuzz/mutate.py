"""Damage to corpus entries: flips, cuts, repeats, and words that parsers trip over. All of it follows from the seed."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
DAMAGES = (1, 1, 1, 2, 4)
"""How often an entry is damaged: mostly once, or nothing would get past the first check."""


def corpus(name: str) -> list[tuple[str, bytes]]:
    """Entries of one corpus with their names, in order."""
    return [(path.stem, path.read_bytes()) for path in sorted((CORPUS / name).iterdir())]


def mutants(name: str, seed: int, count: int, words: Sequence[bytes]) -> Iterator[bytes]:
    """`count` damaged entries of the corpus `name`."""
    rng = random.Random(seed)
    entries = [data for _, data in corpus(name)]
    for _ in range(count):
        data = rng.choice(entries)
        for _ in range(rng.choice(DAMAGES)):
            data = _damaged(data, rng, words, entries)
        yield data


def _damaged(data: bytes, rng: random.Random, words: Sequence[bytes], entries: Sequence[bytes]) -> bytes:
    at = rng.randint(0, len(data))
    end = min(len(data), at + rng.randint(0, 24))
    match rng.randrange(6):
        case 0:
            return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:end] + data[at:]
        case 3:
            return data[:at] + rng.choice(words) + data[at:]
        case 4:
            return data[:at]
        case _:
            other = rng.choice(entries)
            return data[:at] + other[rng.randint(0, len(other)) :]
