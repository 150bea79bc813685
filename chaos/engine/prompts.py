"""From a request body to work for the engine: which model, which prompt, how many tokens, which answer.

An answer is numbered words, `tok-0001 tok-0002 ...`, one for each output token, so that whoever reads it can prove that
every token came, once and in order. A request that continues an unfinished answer continues its numbering.
"""

import enum
import json
import re
from typing import Any

import msgspec

from chaos.engine.values import EngineRequest
from gir.model.prefix import prefix_hashes

BYTES_PER_TOKEN = 4
"""No tokenizer here: a token is four bytes of prompt text."""
_NUMBERED = re.compile(r"tok-(\d+) ?$")


class Api(enum.Enum):
    """Paths that generate or compute something."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    EMBEDDINGS = "/v1/embeddings"
    RERANK = "/v1/rerank"
    SCORE = "/v1/score"
    TOKENIZE = "/tokenize"


API_OF = {api.value: api for api in Api} | {"/rerank": Api.RERANK, "/score": Api.SCORE}
GENERATING = frozenset({Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES})


class ApiError(Exception):
    """An answer of status 4xx with vLLM's error body."""

    def __init__(self, status: int, message: str, type_: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.body = compact(
            {"error": {"message": message, "type": type_, "param": param, "code": status}},
        )


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod serves and how long its answers are."""

    model: str
    adapters: tuple[str, ...] = ()
    context_tokens_max: int = 8_192
    answer_tokens: int = 128
    """Length of an answer that nobody cut short: then finish_reason is `stop`."""
    block_tokens: int = 16


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One request, understood."""

    api: Api
    model: str
    work: EngineRequest
    body: dict[str, Any]
    inputs: tuple[str, ...] = ()
    """Texts to embed or score, each an item of the answer."""
    choices: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    first_number: int = 1
    visible_chars: int | None = None
    """Where a stop string cut the answer."""
    finish_reason: str = "stop"
    stop_reason: str | None = None
    context_tokens_max: int = 0

    def text(self, start: int, end: int) -> str:
        """Answer between two counts of output tokens."""
        piece = numbered(self.first_number + start, end - start)
        if self.visible_chars is None:
            return piece
        before = len(numbered(self.first_number, start))
        return piece[: max(0, self.visible_chars - before)]


def numbered(first: int, count: int) -> str:
    """`count` numbered words from `first` on, each followed by a blank."""
    return "".join([f"tok-{number:04d} " for number in range(first, first + count)])


def compact(value: Any) -> bytes:
    """JSON without blanks, as vLLM writes it."""
    return msgspec.json.encode(value)


def parse(api: Api, raw: bytes, served: Served) -> Job:
    """Understand one body; raises ApiError with vLLM's status and wording."""
    body = _decode(raw)
    model = body.get("model") or served.model
    if model != served.model and model not in served.adapters:
        aliases = ", ".join((served.model, *served.adapters))
        raise ApiError(404, f"The model `{model}` does not exist. Valid aliases: {aliases}.", "NotFoundError", "model")
    prompt, inputs, first_number = _prompt(api, body)
    data = prompt.encode(errors="surrogatepass")
    prompt_tokens = max(1, -(-len(data) // BYTES_PER_TOKEN))
    job_tokens, finish_reason = _output_tokens(api, body, prompt_tokens, served)
    stops = body.get("stop") or body.get("stop_sequences") or []
    stops = [stops] if isinstance(stops, str) else list(stops)
    visible, stop_reason = None, None
    if stops and job_tokens:
        job_tokens, visible, stop_reason = _cut_at_stop(stops, first_number, job_tokens)
        finish_reason = "stop" if stop_reason else finish_reason
    options = body.get("stream_options") or {}
    adapter = model if model in served.adapters else None
    hashes = prefix_hashes(
        model, data, block_bytes=served.block_tokens * BYTES_PER_TOKEN, blocks_max=prompt_tokens // served.block_tokens
    )
    return Job(
        api=api,
        model=model,
        work=EngineRequest(prompt_tokens=prompt_tokens, output_tokens=job_tokens, block_hashes=hashes, adapter=adapter),
        body=body,
        inputs=inputs,
        choices=int(body.get("n") or 1) if api in (Api.CHAT, Api.COMPLETIONS) else 1,
        stream=bool(body.get("stream")) and api in GENERATING,
        include_usage=bool(options.get("include_usage")),
        continuous_usage=bool(options.get("continuous_usage_stats")),
        first_number=first_number,
        visible_chars=visible,
        finish_reason=finish_reason,
        stop_reason=stop_reason,
        context_tokens_max=served.context_tokens_max,
    )


def _decode(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        at, why = getattr(error, "pos", 0), getattr(error, "msg", "invalid")
        raise ApiError(
            400,
            "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body."
            f"{at}', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {{'error': '{why}'}}}}",
            "Bad Request",
            f"body.{at}",
        ) from error
    if not isinstance(body, dict):
        raise _invalid("body", "Input should be a valid dictionary")
    return body


def _invalid(field: str, why: str) -> ApiError:
    message = f"1 validation error:\n  {{'type': 'value_error', 'loc': '{field}', 'msg': '{why}'}}"
    return ApiError(400, message, "Bad Request", field)


def _prompt(api: Api, body: dict[str, Any]) -> tuple[str, tuple[str, ...], int]:
    """Prompt text, the separate inputs if any, and the number the answer begins with."""
    if api in (Api.CHAT, Api.MESSAGES):
        return _conversation(body)
    if api in (Api.RERANK, Api.SCORE):
        query = body.get("query") or body.get("text_1")
        documents = body.get("documents") or body.get("text_2")
        documents = [documents] if isinstance(documents, str) else documents
        if not isinstance(query, str) or not isinstance(documents, list):
            raise _invalid("body", "Field required: query and documents, or text_1 and text_2")
        texts = tuple(str(document) for document in documents)
        return query + "".join(texts), texts, 1
    field = "input" if api in (Api.RESPONSES, Api.EMBEDDINGS) else "prompt"
    if api is Api.TOKENIZE and "messages" in body:
        return _conversation(body)
    if field not in body:
        raise _invalid(f"body.{field}", "Field required")
    value = body[field]
    texts = tuple(_plain(item) for item in value) if isinstance(value, list) else (_plain(value),)
    prompt = "".join(texts)
    return prompt, texts, _next_number(prompt) if api is Api.COMPLETIONS else 1


def _conversation(body: dict[str, Any]) -> tuple[str, tuple[str, ...], int]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise _invalid("body.messages", "Field required")
    texts = [f"{message.get('role')}\n{_plain(message.get('content'))}\n" for message in messages]
    if isinstance(system := body.get("system"), str):
        texts.insert(0, f"system\n{system}\n")
    first_number = 1
    if body.get("continue_final_message"):
        if body.get("add_generation_prompt", True):
            raise _invalid(
                "body", "Cannot set both continue_final_message and add_generation_prompt to True; set one to false"
            )
        first_number = _next_number(_plain(messages[-1].get("content"))) if messages else 1
    return "".join(texts), (), first_number


def _plain(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") if isinstance(part, dict) else f"{part} " for part in content)
    if isinstance(content, dict):
        return _plain(content.get("content"))
    return "" if content is None else str(content)


def _next_number(text: str) -> int:
    found = _NUMBERED.search(text)
    return int(found[1]) + 1 if found else 1


def _output_tokens(api: Api, body: dict[str, Any], prompt_tokens: int, served: Served) -> tuple[int, str]:
    """Length of the answer and why it ends there; raises ApiError when the context is too short for it."""
    limit = served.context_tokens_max
    if prompt_tokens > limit:
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
            f"{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. Please reduce "
            f"the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})",
            "BadRequestError",
            "input_tokens",
        )
    if api not in GENERATING:
        return 0, "stop"
    asked = body.get("max_completion_tokens") or body.get("max_tokens") or body.get("max_output_tokens")
    if asked is None:
        room = min(served.answer_tokens, limit - prompt_tokens)
        return max(1, room), "stop" if room == served.answer_tokens else "length"
    if not isinstance(asked, int) or asked < 1:
        raise _invalid("body.max_tokens", "max_tokens must be at least 1")
    if prompt_tokens + asked > limit:
        raise ApiError(
            400,
            f"This model's maximum context length is {limit} tokens. However, you requested {asked} output tokens and "
            f"your prompt contains at least {prompt_tokens} input tokens, for a total of at least "
            f"{prompt_tokens + asked} tokens. Please reduce the length of the input prompt or the number of requested "
            f"output tokens. (parameter=input_tokens, value={prompt_tokens})",
            "BadRequestError",
            "input_tokens",
        )
    if asked <= served.answer_tokens or body.get("ignore_eos"):
        return asked, "length"
    return served.answer_tokens, "stop"


def _cut_at_stop(stops: list[str], first_number: int, tokens: int) -> tuple[int, int | None, str | None]:
    """Tokens until a stop string is complete, characters before it, and which it was."""
    text = numbered(first_number, tokens)
    at, stop = min(((text.find(stop), stop) for stop in stops if stop and stop in text), default=(-1, ""))
    if at < 0:
        return tokens, None, None
    count = next(n for n in range(1, tokens + 1) if len(numbered(first_number, n)) >= at + len(stop))
    return count, at, stop
