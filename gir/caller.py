"""What a request head says to the pipeline, worked out once while its client repeats it.

Clients send the same head on a connection again and again; the connection hands out the same `RequestHead` then, and a
`Caller` rides on it. Nothing here is a decision: whether a credential is good or a claim allowed is asked every time.
"""

import functools

from gir.auth.credentials import check_single, credential_of, digest_of
from gir.forward.heads import forwarded
from gir.net.message import RequestHead
from gir.net.pool import Endpoint
from gir.net.render import request_start
from gir.wire import headers as names
from gir.wire.openai import api_of

STARTS_MAX = 64
"""Clusters whose request starts are kept for one head; beyond it they are rendered again."""
SESSION_CHARS_MAX = 256
_endpoint = functools.lru_cache(maxsize=4096)(Endpoint.parse)


class Caller:
    """The parts of one head. Raises RequestError UNAUTHENTICATED when its credentials contradict one another."""

    __slots__ = ("_head", "_starts", "api", "credential", "criticality", "deadline_ms", "digest", "hops", "pinned",
                 "session_key")  # fmt: skip

    def __init__(self, head: RequestHead) -> None:
        get = head.get
        self._head = head
        self._starts: dict[tuple[str, bytes, bool], bytes] = {}
        self.api = api_of(head.path)
        check_single(head.headers)
        self.credential = credential_of(get(b"authorization"), get(b"x-api-key"))
        self.digest = digest_of(self.credential) if self.credential else None
        self.criticality = get(names.CRITICALITY)
        self.deadline_ms = get(names.DEADLINE_MS)
        hops = get(names.HOPS)
        self.hops = int(hops) if hops and hops.isdigit() and len(hops) < 4 else 0
        pinned = get(names.CLUSTER_PIN)
        self.pinned = pinned.decode("latin-1") if pinned else None
        session = get(names.SESSION)
        self.session_key = session.decode("latin-1")[:SESSION_CHARS_MAX] if session else None

    def start(self, url: str, authorization: bytes, *, trusted: bool) -> bytes:
        """The part of the upstream's request head that is the same each time: line, Host, client's headers, credential.

        Raises ValueError on characters that could split a message.
        """
        key = (url, authorization, trusted)
        start = self._starts.get(key)
        if start is None:
            head, endpoint = self._head, _endpoint(url)
            headers = [*forwarded(head.headers, trusted=trusted), (b"authorization", authorization)]
            target = endpoint.base_path.encode() + head.target
            start = request_start(head.method, target, endpoint.authority, headers)
            if len(self._starts) < STARTS_MAX:
                self._starts[key] = start
        return start


def caller_of(head: RequestHead) -> Caller:
    """The caller behind `head`."""
    known = head.memo
    if isinstance(known, Caller):
        return known
    caller = head.memo = Caller(head)
    return caller
