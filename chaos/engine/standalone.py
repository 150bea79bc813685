"""Answers that generate nothing: embeddings, ranks and scores, deterministic in their input."""

import base64
import struct
from typing import Any

import xxhash

from chaos.engine.prompts import Job

DIMENSIONS = 8


def vector(text: str) -> list[float]:
    """Small unit-range vector of a text; equal texts give equal vectors."""
    return [xxhash.xxh3_64_intdigest(text.encode(errors="replace"), seed) / 2**63 - 1.0 for seed in range(DIMENSIONS)]


def _score(job: Job, text: str) -> float:
    return (vector(f"{job.body.get('query') or job.body.get('text_1')}\n{text}")[0] + 1.0) / 2.0


def _usage(job: Job) -> dict[str, int]:
    tokens = job.work.prompt_tokens
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}


def whole_embeddings(job: Job, id_: str, created: int) -> dict[str, Any]:
    """OpenAI embeddings, as floats or (what the official client asks for) base64 of little-endian float32."""
    data = []
    for index, text in enumerate(job.inputs):
        values: Any = vector(text)
        if job.body.get("encoding_format") == "base64":
            values = base64.b64encode(struct.pack(f"<{DIMENSIONS}f", *values)).decode()
        data.append({"index": index, "object": "embedding", "embedding": values})
    return {"id": id_, "object": "list", "created": created, "model": job.model, "data": data, "usage": _usage(job)}


def whole_rerank(job: Job, id_: str) -> dict[str, Any]:
    """Documents by relevance, best first."""
    ranked = sorted(((_score(job, text), index, text) for index, text in enumerate(job.inputs)), reverse=True)
    top = job.body.get("top_n") or len(ranked)
    results = [{"index": i, "document": {"text": text}, "relevance_score": score} for score, i, text in ranked[:top]]
    return {"id": id_, "model": job.model, "usage": {"total_tokens": job.work.prompt_tokens}, "results": results}


def whole_score(job: Job, id_: str, created: int) -> dict[str, Any]:
    """One score for each pair."""
    data = [{"index": i, "object": "score", "score": _score(job, text)} for i, text in enumerate(job.inputs)]
    return {"id": id_, "object": "list", "created": created, "model": job.model, "data": data, "usage": _usage(job)}
