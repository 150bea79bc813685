"""How each API says the same numbered words: whole answers, and streams event by event.

Chat and completions follow captures of a real vLLM (`tests/golden`) down to the order of the keys; Responses and
Messages carry every event the official clients insist on.
"""

from typing import Any, Protocol

from chaos.engine.prompts import Api, Job, compact
from chaos.engine.standalone import whole_embeddings, whole_rerank, whole_score

DONE = b"data: [DONE]\n\n"
FINGERPRINT = "vllm-sim"


class Stream(Protocol):
    """One answer as server-sent events. Token counts are of the choice `index`."""

    def opening(self, cached: int) -> list[bytes]:
        """Events before the first token, once it is certain to come."""

    def delta(self, index: int, before: int, after: int, *, last: bool) -> list[bytes]:
        """Events for the tokens between two counts."""

    def closing(self, generated: int, cached: int) -> list[bytes]:
        """Events after the last token of the last choice."""


def sse(value: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    name = f"event: {event}\n".encode() if event else b""
    return name + b"data: " + compact(value) + b"\n\n"


def usage(job: Job, generated: int, cached: int, *, details: bool) -> dict[str, Any]:
    """vLLM's usage block; `prompt_tokens_details` only when the engine was started with it."""
    prompt = job.work.prompt_tokens
    block: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
    }
    if details:
        block["prompt_tokens_details"] = {"cached_tokens": cached}
    return block


class OpenAiStream:
    """Chat completions and completions."""

    def __init__(self, job: Job, id_: str, created: int, *, details: bool) -> None:
        self._job = job
        self._details = details
        self._chat = job.api is Api.CHAT
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        self._base = {"id": id_, "object": kind, "created": created, "model": job.model}

    def _usage(self, generated: int) -> dict[str, Any]:
        if not self._job.continuous_usage:
            return {}
        return {"usage": usage(self._job, generated, 0, details=False) | {"completion_tokens_details": None}}

    def opening(self, cached: int) -> list[bytes]:  # noqa: ARG002 (other APIs say it here)
        if not self._chat:
            return []
        events = []
        for index in range(self._job.choices):
            choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
            head = {**self._base, "choices": [choice | {"finish_reason": None}], **self._usage(0)}
            events.append(sse(head | {"prompt_token_ids": None, "prompt_text": None}))
        return events

    def delta(self, index: int, before: int, after: int, *, last: bool) -> list[bytes]:
        job = self._job
        text = job.text(before, after)
        choice: dict[str, Any] = {"index": index}
        choice |= {"delta": {"content": text}} if self._chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": job.finish_reason if last else None}
        if last or not self._chat:
            choice["stop_reason"] = job.stop_reason if last else None
        choice["token_ids"] = None
        event = {**self._base, "choices": [choice], **self._usage(after)}
        if last and not job.include_usage:
            event["system_fingerprint"] = FINGERPRINT
        return [sse(event)]

    def closing(self, generated: int, cached: int) -> list[bytes]:
        if not self._job.include_usage:
            return [DONE]
        total = usage(self._job, generated, cached, details=self._details)
        return [sse({**self._base, "choices": [], "usage": total, "system_fingerprint": FINGERPRINT}), DONE]


class ResponsesStream:
    """OpenAI Responses: numbered events, the whole object at both ends."""

    def __init__(self, job: Job, id_: str, created: int) -> None:
        self._job = job
        self._id = id_
        self._created = created
        self._item = f"msg_{id_}"
        self._number = 0

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def _at(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def opening(self, cached: int) -> list[bytes]:  # noqa: ARG002
        started = response_object(self._job, self._id, self._created, 0, 0, status="in_progress")
        item = {"id": self._item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        return [
            self._event("response.created", response=started),
            self._event("response.in_progress", response=started),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._at(), part=_part("")),
        ]

    def delta(self, index: int, before: int, after: int, *, last: bool) -> list[bytes]:  # noqa: ARG002
        text = self._job.text(before, after)
        return [self._event("response.output_text.delta", **self._at(), delta=text, logprobs=[])]

    def closing(self, generated: int, cached: int) -> list[bytes]:
        text = self._job.text(0, generated)
        whole = response_object(self._job, self._id, self._created, generated, cached)
        kind = "response.completed" if whole["status"] == "completed" else "response.incomplete"
        return [
            self._event("response.output_text.done", **self._at(), text=text, logprobs=[]),
            self._event("response.content_part.done", **self._at(), part=_part(text)),
            self._event("response.output_item.done", output_index=0, item=whole["output"][0]),
            self._event(kind, response=whole),
        ]


class MessagesStream:
    """Anthropic Messages."""

    def __init__(self, job: Job, id_: str) -> None:
        self._job = job
        self._id = id_

    def opening(self, cached: int) -> list[bytes]:
        message = messages_object(self._job, self._id, 0, cached) | {"content": [], "stop_reason": None}
        block = {"type": "text", "text": ""}
        return [
            sse({"type": "message_start", "message": message}, "message_start"),
            sse({"type": "content_block_start", "index": 0, "content_block": block}, "content_block_start"),
        ]

    def delta(self, index: int, before: int, after: int, *, last: bool) -> list[bytes]:  # noqa: ARG002
        delta = {"type": "text_delta", "text": self._job.text(before, after)}
        return [sse({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")]

    def closing(self, generated: int, cached: int) -> list[bytes]:
        whole = messages_object(self._job, self._id, generated, cached)
        delta = {key: whole[key] for key in ("stop_reason", "stop_sequence")}
        return [
            sse({"type": "content_block_stop", "index": 0}, "content_block_stop"),
            sse({"type": "message_delta", "delta": delta, "usage": whole["usage"]}, "message_delta"),
            sse({"type": "message_stop"}, "message_stop"),
        ]


def stream(job: Job, id_: str, created: int, *, details: bool) -> Stream:
    """The stream shape of a job's API."""
    if job.api is Api.RESPONSES:
        return ResponsesStream(job, id_, created)
    if job.api is Api.MESSAGES:
        return MessagesStream(job, id_)
    return OpenAiStream(job, id_, created, details=details)


def whole(job: Job, id_: str, created: int, generated: int, cached: int, *, details: bool) -> bytes:
    """The answer as one JSON body. `generated` counts the tokens of all choices."""
    match job.api:
        case Api.RESPONSES:
            return compact(response_object(job, id_, created, generated, cached))
        case Api.MESSAGES:
            return compact(messages_object(job, id_, generated, cached))
        case Api.EMBEDDINGS:
            return compact(whole_embeddings(job, id_, created))
        case Api.RERANK:
            return compact(whole_rerank(job, id_))
        case Api.SCORE:
            return compact(whole_score(job, id_, created))
        case Api.TOKENIZE:
            count = job.work.prompt_tokens
            limit = job.context_tokens_max
            return compact({"count": count, "max_model_len": limit, "tokens": list(range(count)), "token_strs": None})
        case Api.CHAT | Api.COMPLETIONS:
            return compact(_openai_object(job, id_, created, generated, cached, details=details))


def _openai_object(job: Job, id_: str, created: int, generated: int, cached: int, *, details: bool) -> dict[str, Any]:
    text = job.text(0, generated // job.choices)
    tail = {"finish_reason": job.finish_reason, "stop_reason": job.stop_reason, "token_ids": None}
    chat = job.api is Api.CHAT
    choices: list[dict[str, Any]] = []
    for index in range(job.choices):
        if chat:
            message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
            message |= {"function_call": None, "reasoning": None}
            choices.append({"index": index, "message": message, "logprobs": None, **tail})
        else:
            choices.append({"index": index, "text": text, "logprobs": None, **tail, "prompt_logprobs": None})
    counted = usage(job, generated, cached, details=details)
    counted.setdefault("prompt_tokens_details", None)
    return {
        "id": id_,
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": job.model,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": counted | {"completion_tokens_details": None},
        "kv_transfer_params": None,
    }


def response_object(
    job: Job, id_: str, created: int, generated: int, cached: int, *, status: str | None = None
) -> dict[str, Any]:
    """The Responses API's object; with `status="in_progress"` it has no output yet."""
    cut = job.finish_reason == "length"
    final = status is None
    status = status or ("incomplete" if cut else "completed")
    item = {"id": f"msg_{id_}", "type": "message", "role": "assistant", "status": status}
    prompt = job.work.prompt_tokens
    counted = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + generated,
    }
    return {
        "id": id_,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if final and cut else None,
        "instructions": None,
        "metadata": {},
        "model": job.model,
        "output": [{**item, "content": [_part(job.text(0, generated))]}] if final else [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": counted if final else None,
    }


def messages_object(job: Job, id_: str, generated: int, cached: int) -> dict[str, Any]:
    """The Messages API's object."""
    reason = {"length": "max_tokens", "stop": "stop_sequence" if job.stop_reason else "end_turn"}[job.finish_reason]
    return {
        "id": id_,
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": job.text(0, generated)}],
        "model": job.model,
        "stop_reason": reason,
        "stop_sequence": job.stop_reason,
        "usage": {
            "input_tokens": job.work.prompt_tokens - cached,
            "output_tokens": generated,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
        },
    }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
