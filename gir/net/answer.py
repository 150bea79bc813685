"""A RequestError as an HTTP answer: the row of the error table, its headers and its body."""

import math
import random

from gir.model.errors import RequestError, error_body
from gir.net.message import Headers


def error_answer(error: RequestError, origin: str, chance: random.Random) -> tuple[int, Headers, bytes]:
    """Status, headers and OpenAI error JSON of `error`.

    `origin` is who runs this engine (`gir` or `agent`); it speaks unless the error names somebody further down.
    The header `x-gir-origin` tells the tier above that no engine saw the request.

    Retry-After is whole seconds, never less than what the error says and spread upwards by a quarter, so that those
    turned away together do not return together.
    """
    row = error.kind.value
    headers: Headers = [(b"content-type", b"application/json"), (b"x-gir-origin", origin.encode())]
    if row.retry_after:
        wait_s = max(1, math.ceil(error.retry_after_s or 1.0))
        headers.append((b"retry-after", b"%d" % (wait_s + chance.randint(0, max(1, wait_s // 4)))))
    if row.should_retry is not None:
        headers.append((b"x-should-retry", b"true" if row.should_retry else b"false"))
    speaker = origin if error.origin == "gir" else error.origin
    return row.status, headers, error_body(error.kind, error.message, origin=speaker, param=error.param)
