"""The little a router must read of a request body; `splice` holds the two edits it may make.

A body is decoded once, typed and partial: only the fields that routing, admission and accounting need; prompts stay
raw slices. The bytes themselves are forwarded as they came, so unknown fields, key order and odd whitespace survive.

What an engine could read differently from us is refused, so that nobody is routed by one model and run by another:
duplicate `model` keys in any spelling, invalid UTF-8, NaN, and nesting deeper than `DEPTH_MAX`. Messages name the
field and the fix; they never carry prompt text. Of other keys given twice the last counts, as in the engines.
"""

import re
from collections.abc import Callable

import msgspec
from msgspec import UNSET, Raw, UnsetType

from gir.model.request import Api
from gir.wire import refusals, structure
from gir.wire.splice import edited, with_include_usage, with_model
from gir.wire.structure import DEPTH_MAX
from gir.wire.survey import Survey
from gir.wire.usage import read_usage

__all__ = ["DEPTH_MAX", "Peek", "api_of", "edited", "peek", "read_usage", "with_include_usage", "with_model"]

MODEL_CHARS_MAX = 256
COUNT_MAX = 2**31 - 1
"""Whatever larger number a client names, this is reckoned with; what it means is for the engine to say."""
RESUMABLE_BYTES_MAX = 4 * 1024 * 1024
"""Longer prompts are not looked through for what a second engine could not continue."""

_ABSENT = frozenset({b"", b"null", b"[]", b"{}", b"false"})
"""Values of an optional field that ask for nothing."""
_TEXT_PART = re.compile(rb'"type"[ \t\r\n]*:[ \t\r\n]*"(?:text|input_text|output_text)"')
_SEVERAL = re.compile(rb'\[[ \t\r\n]*["\[]')
_RELAYED_PATH = re.compile(r"/v1(?:/[A-Za-z0-9_-][A-Za-z0-9_.:-]*)+")

_APIS = {
    "/v1/chat/completions": Api.CHAT,
    "/v1/completions": Api.COMPLETIONS,
    "/v1/embeddings": Api.EMBEDDINGS,
    "/v1/responses": Api.RESPONSES,
    "/v1/messages": Api.MESSAGES,
    "/v1/rerank": Api.RERANK,
    "/v2/rerank": Api.RERANK,
    "/rerank": Api.RERANK,
    "/v1/score": Api.SCORE,
    "/score": Api.SCORE,
    "/tokenize": Api.TOKENIZE,
}


def api_of(path: str) -> Api | None:
    """API of a POST to `path` (no query string); None when the path is not part of the relayed surface.

    Any other plain path under /v1/ is OTHER. Dot segments and percent escapes are not plain: an engine behind us could
    resolve them to something outside /v1/.
    """
    api = _APIS.get(path)
    if api is None and _RELAYED_PATH.fullmatch(path):
        return Api.OTHER
    return api


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Named(msgspec.Struct):
    model: str
    stream: bool | None = None


class _Keyed(_Named):
    user: str | None = None
    prompt_cache_key: str | None = None


class _Chat(_Keyed):
    messages: Raw = Raw()
    stream_options: _StreamOptions | UnsetType | None = UNSET
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    tools: Raw = Raw()
    functions: Raw = Raw()
    response_format: Raw = Raw()
    logprobs: Raw = Raw()
    structured_outputs: Raw = Raw()
    guided_json: Raw = Raw()
    guided_regex: Raw = Raw()
    guided_choice: Raw = Raw()
    guided_grammar: Raw = Raw()
    modalities: Raw = Raw()


class _Completions(_Keyed):
    prompt: Raw = Raw()
    stream_options: _StreamOptions | UnsetType | None = UNSET
    max_tokens: int | None = None
    n: int | None = None


class _Embeddings(_Keyed):
    input: Raw = Raw()


class _Responses(_Keyed):
    input: Raw = Raw()
    instructions: Raw = Raw()
    max_output_tokens: int | None = None
    conversation: Raw = Raw()


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Messages(_Named):
    messages: Raw = Raw()
    system: Raw = Raw()
    max_tokens: int | None = None
    metadata: _Metadata | None = None


class _Rerank(_Keyed):
    documents: Raw = Raw()


class _Score(_Keyed):
    text_2: Raw = Raw()


class _Tokenize(_Named):
    prompt: Raw = Raw()
    messages: Raw = Raw()


class _ConversationRef(msgspec.Struct):
    id: str


_decode_chat = msgspec.json.Decoder(_Chat).decode
_decode_completions = msgspec.json.Decoder(_Completions).decode
_decode_embeddings = msgspec.json.Decoder(_Embeddings).decode
_decode_responses = msgspec.json.Decoder(_Responses).decode
_decode_messages = msgspec.json.Decoder(_Messages).decode
_decode_rerank = msgspec.json.Decoder(_Rerank).decode
_decode_score = msgspec.json.Decoder(_Score).decode
_decode_tokenize = msgspec.json.Decoder(_Tokenize).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_conversation = msgspec.json.Decoder(str | _ConversationRef | None).decode


class Peek(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of one body."""

    model: str
    stream: bool = False
    include_usage: bool = False
    """The client itself asked for the usage chunk of a stream."""
    options_absent: bool = False
    """There is no `stream_options` at all, so that `with_include_usage` need not look for it."""
    output_tokens_max: int | None = None
    choices: int = 1
    """How many a stream must bring to its end: `n`, for each of the prompts where there may be several."""
    prompt: bytes | memoryview = b""
    """Raw JSON of what the model reads: `messages`, `prompt` or `input`, after system text where that stands apart."""
    session_key: str | None = None
    """First given of `prompt_cache_key`, `conversation` and `user` (`metadata.user_id` in the Messages API)."""
    chat: _Chat | None = None
    """The decoded fields of a chat request, for `resumable`."""

    @property
    def resumable(self) -> bool:
        """Whether another engine could continue this request's stream: chat, one choice, text in and out only.

        Looks through the prompt, so ask only where policy resumes at all.
        """
        asked = self.chat
        if len(self.prompt) > RESUMABLE_BYTES_MAX:
            return False
        if asked is None or self.choices != 1 or any(bytes(value) not in _ABSENT for value in _output_shapers(asked)):
            return False
        prompt = bytes(self.prompt)
        return prompt.count(b'"type"') == len(_TEXT_PART.findall(prompt))


def _output_shapers(asked: _Chat) -> tuple[Raw, ...]:
    """Fields whose effect depends on tokens already sent, so that a second engine could not honour them."""
    return (
        asked.tools,
        asked.functions,
        asked.response_format,
        asked.logprobs,
        asked.structured_outputs,
        asked.guided_json,
        asked.guided_regex,
        asked.guided_choice,
        asked.guided_grammar,
        asked.modalities,
    )


def peek(api: Api, body: bytes, surveyed: Survey | None = None) -> Peek:
    """Read what is needed of `body`; what was `surveyed` before is not looked for again.

    Raises RequestError: BAD_JSON for bytes that are not one well-formed JSON text, BAD_REQUEST for fields that cannot
    mean what routing needs; both name the field and the fix.
    """
    read, prompt_key = _READERS[api]
    try:
        seen, prompt = read(body)
    except msgspec.ValidationError as error:
        refusals.refuse_field(body, error)
    except msgspec.DecodeError as error:
        refusals.refuse_json(error)
    except RecursionError:
        refusals.refuse_depth(DEPTH_MAX)
    if surveyed is not None:
        if len(surveyed.model_at) > 1:
            refusals.refuse_duplicate("model")
    else:
        _check_whole(body, prompt_key, prompt)
    model = seen.model
    if not model or len(model) > MODEL_CHARS_MAX or not model.isprintable():
        refusals.refuse_model(model, MODEL_CHARS_MAX)
    return seen


def _check_whole(body: bytes, prompt_key: bytes, prompt: Raw) -> None:
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as error:
            refusals.refuse_utf8(error)
    structure.check(body, prompt_key, prompt)


def _read_chat(body: bytes) -> tuple[Peek, Raw]:
    seen = _decode_chat(body)
    options = seen.stream_options
    limit = seen.max_completion_tokens if seen.max_completion_tokens is not None else seen.max_tokens
    return Peek(
        model=seen.model,
        stream=seen.stream is True,
        include_usage=isinstance(options, _StreamOptions) and options.include_usage is True,
        options_absent=options is UNSET,
        output_tokens_max=_limit(limit),
        choices=_choices(seen.n),
        prompt=memoryview(seen.messages),
        session_key=seen.prompt_cache_key or seen.user,
        chat=seen,
    ), seen.messages


def _read_completions(body: bytes) -> tuple[Peek, Raw]:
    seen = _decode_completions(body)
    options = seen.stream_options
    return Peek(
        model=seen.model,
        stream=seen.stream is True,
        include_usage=isinstance(options, _StreamOptions) and options.include_usage is True,
        options_absent=options is UNSET,
        output_tokens_max=_limit(seen.max_tokens),
        choices=_choices(seen.n) * _prompts(seen.prompt),
        prompt=memoryview(seen.prompt),
        session_key=seen.prompt_cache_key or seen.user,
    ), seen.prompt


def _read_responses(body: bytes) -> tuple[Peek, Raw]:
    seen = _decode_responses(body)
    conversation = _decode_conversation(seen.conversation) if seen.conversation else None
    if isinstance(conversation, _ConversationRef):
        conversation = conversation.id
    return Peek(
        model=seen.model,
        stream=seen.stream is True,
        include_usage=True,
        output_tokens_max=_limit(seen.max_output_tokens),
        prompt=_joined(seen.instructions, seen.input),
        session_key=seen.prompt_cache_key or conversation or seen.user,
    ), seen.input


def _read_messages(body: bytes) -> tuple[Peek, Raw]:
    seen = _decode_messages(body)
    return Peek(
        model=seen.model,
        stream=seen.stream is True,
        include_usage=True,
        output_tokens_max=_limit(seen.max_tokens),
        prompt=_joined(seen.system, seen.messages),
        session_key=seen.metadata.user_id if seen.metadata else None,
    ), seen.messages


def _reader_of(decode: Callable[[bytes], _Named], field: str) -> Callable[[bytes], tuple[Peek, Raw]]:
    """Reader of an API that neither streams nor generates: model, prompt and session only."""

    def read(body: bytes) -> tuple[Peek, Raw]:
        seen = decode(body)
        prompt: Raw = getattr(seen, field, Raw())
        session = (seen.prompt_cache_key or seen.user) if isinstance(seen, _Keyed) else None
        stream = seen.stream is True
        return Peek(model=seen.model, stream=stream, prompt=memoryview(prompt), session_key=session), prompt

    return read


def _joined(system: Raw, rest: Raw) -> bytes | memoryview:
    return bytes(system) + bytes(rest) if system else memoryview(rest)


def _limit(tokens: int | None) -> int | None:
    """Negative limits mean none (llama.cpp)."""
    return min(tokens, COUNT_MAX) if tokens is not None and tokens >= 0 else None


def _choices(n: int | None) -> int:
    return min(n, COUNT_MAX) if n is not None and n > 1 else 1


def _prompts(prompt: Raw) -> int:
    """How many prompts a completions request holds: a list of texts or of token lists is several, tokens are one."""
    if not _SEVERAL.match(prompt):
        return 1
    return max(1, len(_decode_items(prompt)))


_READERS: dict[Api, tuple[Callable[[bytes], tuple[Peek, Raw]], bytes]] = {
    Api.CHAT: (_read_chat, b'"messages"'),
    Api.COMPLETIONS: (_read_completions, b'"prompt"'),
    Api.EMBEDDINGS: (_reader_of(_decode_embeddings, "input"), b'"input"'),
    Api.RESPONSES: (_read_responses, b'"input"'),
    Api.MESSAGES: (_read_messages, b'"messages"'),
    Api.RERANK: (_reader_of(_decode_rerank, "documents"), b'"documents"'),
    Api.SCORE: (_reader_of(_decode_score, "text_2"), b'"text_2"'),
    Api.TOKENIZE: (_reader_of(_decode_tokenize, "prompt"), b'"prompt"'),
    Api.OTHER: (_reader_of(_decode_named, ""), b'"model"'),
}
