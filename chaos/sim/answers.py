"""The bytes of answers: what a pod says, in numbered words, so that whoever reads them can prove what was lost."""

import msgspec

HEAD_STREAM = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-gir-pod: sim\r\ntransfer-encoding: chunked\r\n\r\n"
)
HEAD_UNFRAMED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-gir-pod: sim\r\nconnection: close\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"
ERROR_EVENT = b'data: {"error":{"message":"engine failed","type":"InternalServerError","code":500}}\n\n'
HALF_EVENT = b'data: {"id":"x","choices":[{"index":0,"del'
_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 429: b"Too Many", 500: b"Error", 503: b"Busy"}


class Asked(msgspec.Struct):
    """What an agent reads of a request's body."""

    model: str
    max_tokens: int = 4
    stream: bool = False


decode_asked = msgspec.json.Decoder(Asked).decode


def chunked(data: bytes) -> bytes:
    """`data` as one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def token_event(answer: str, number: int, *, last: bool) -> bytes:
    """Event of output token `number`, counted from 1."""
    reason = '"stop"' if last else "null"
    return (
        f'data: {{"id":"{answer}","object":"chat.completion.chunk","created":1,"model":"sim","choices":'
        f'[{{"index":0,"delta":{{"content":"tok-{number:04d} "}},"finish_reason":{reason}}}]}}\n\n'
    ).encode()


def usage_event(answer: str, prompt: int, completion: int) -> bytes:
    """The chunk that carries usage alone."""
    return (
        f'data: {{"id":"{answer}","object":"chat.completion.chunk","created":1,"model":"sim","choices":[],"usage":'
        f'{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{prompt + completion}}}}}\n\n'
    ).encode()


def whole_answer(answer: str, prompt: int, completion: int) -> bytes:
    """A complete answer that does not stream."""
    text = "".join(f"tok-{number:04d} " for number in range(1, completion + 1))
    body = (
        f'{{"id":"{answer}","object":"chat.completion","created":1,"model":"sim","choices":[{{"index":0,"message":'
        f'{{"role":"assistant","content":"{text}"}},"finish_reason":"stop"}}],"usage":{{"prompt_tokens":{prompt},'
        f'"completion_tokens":{completion},"total_tokens":{prompt + completion}}}}}'
    ).encode()
    return plain_answer(200, body)


def plain_answer(status: int, body: bytes, *headers: bytes) -> bytes:
    """Any answer with a known length."""
    lines = b"".join(header + b"\r\n" for header in headers)
    head = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % (
        status,
        _REASONS[status],
        len(body),
    )
    return head + lines + b"\r\n" + body


def error_answer(status: int, message: str, *, by_agent: bool = False, retry_after_s: int | None = None) -> bytes:
    """An error in the shape of the API."""
    headers = [b"x-gir-origin: agent"] if by_agent else []
    if retry_after_s is not None:
        headers.append(b"retry-after: %d" % retry_after_s)
    body = msgspec.json.encode({"error": {"message": message, "type": "error", "code": status}})
    return plain_answer(status, body, *headers)


def numbers_in(text: str) -> list[int]:
    """The numbers of the words in a delivered text."""
    return [int(word[4:]) for word in text.split()]
