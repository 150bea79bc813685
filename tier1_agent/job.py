"""One request as the agent serves it: what was asked, for whom it is urgent, and the bytes that go to a pod."""

import hmac

from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId
from gir.model.prefix import prefix_hashes
from gir.model.request import Api, Criticality
from gir.net.exchange import Exchange
from gir.net.message import Headers, RequestHead, ResponseHead
from gir.net.pool import Endpoint
from gir.net.render import request_head
from gir.tasks import in_turns
from gir.wire import headers as names
from gir.wire.openai import DEPTH_MAX, Peek, api_of, peek
from gir.wire.survey import Survey, is_large
from tier1_agent.fleet import Fleet
from tier1_agent.picker import PickRequest
from tier1_agent.pods import Pod
from tier1_agent.pool import Pool

_CRITICALITY = {one.label.encode(): one for one in Criticality}
_PASSED_ON = names.FORWARDED_REQUEST | {names.TRACEPARENT, names.REQUEST_ID}


class Job:
    """A request that was understood and whose model is served here."""

    __slots__ = (
        "api",
        "body",
        "criticality",
        "deadline_s",
        "exchange",
        "headers",
        "model",
        "peeked",
        "pick",
        "pool",
        "prompt_bytes",
        "request_id",
    )

    def __init__(self, exchange: Exchange, api: Api, body: bytes, peeked: Peek, pool: Pool) -> None:
        head = exchange.head
        self.exchange = exchange
        self.api = api
        self.body = body
        self.peeked = peeked
        self.pool = pool
        self.model = ModelId(peeked.model)
        self.prompt_bytes = len(peeked.prompt)
        self.criticality = _CRITICALITY.get(head.get(names.CRITICALITY) or b"", Criticality.STANDARD)
        self.deadline_s = float("inf")
        self.request_id = head.get(names.REQUEST_ID) or b""
        self.headers: Headers = [item for item in head.headers if item[0] in _PASSED_ON]
        self.pick = PickRequest(tokens=0.0)

    def describe(self, adapter: ModelId | None) -> None:
        """Work out what the picker wants to know."""
        peeked, pool = self.peeked, self.pool
        weights = pool.settings.weights
        tokens = pool.traffic.tokens(self.prompt_bytes)
        session = self.exchange.head.get(names.SESSION)
        if session is None and peeked.session_key is not None:
            session = peeked.session_key.encode()
        hashed = weights.prefix or weights.lru or weights.expected_work
        self.pick = PickRequest(
            tokens=tokens,
            hashes=prefix_hashes(peeked.model, peeked.prompt) if hashed else (),
            adapter=adapter,
            session=session,
            context_tokens=round(tokens) + (peeked.output_tokens_max or 0),
        )

    def head_for(self, pod: Pod, endpoint: Endpoint) -> bytes:
        """Request head for one pod: its own credential, never the caller's."""
        headers = self.headers
        if pod.spec.api_key is not None:
            headers = [*headers, (b"authorization", b"Bearer " + pod.spec.api_key.encode())]
        target = endpoint.base_path.encode() + self.exchange.head.target
        return request_head("POST", target, endpoint.authority, headers, len(self.body))


def authorize(head: RequestHead, token: bytes | None) -> None:
    """Only routers that know the cluster's token may use the data port. Raises RequestError UNAUTHENTICATED."""
    if token is None:
        return
    given = head.get(b"authorization") or b""
    scheme, _, credential = given.partition(b" ")
    # The Messages API's clients send their key in a header of its own.
    if scheme.lower() != b"bearer":
        credential = head.get(b"x-api-key") or b""
    if not hmac.compare_digest(credential.strip(), token):
        raise RequestError(
            ErrorKind.UNAUTHENTICATED,
            "the cluster's token is missing or wrong: send Authorization: Bearer <token of this agent>",
        )


async def read_job(exchange: Exchange, fleet: Fleet, *, now_s: float, total_s: float) -> Job:
    """Read and understand the request. Raises RequestError; MODEL_NOT_FOUND lists what is served."""
    head = exchange.head
    api = api_of(head.path)
    if api is None:
        raise RequestError(ErrorKind.NOT_FOUND, f"no such path: {head.path[:80]}; the API begins with /v1/")
    if head.method != "POST":
        raise RequestError(ErrorKind.METHOD_NOT_ALLOWED, f"{head.method} {head.path[:80]}: use POST")
    body = exchange.body_ready
    if body is None:
        body = await exchange.read_body()
    surveyed = Survey(body, DEPTH_MAX) if is_large(body) else None
    if surveyed is not None:
        await in_turns(surveyed.steps())
    peeked = peek(api, body, surveyed)
    found = fleet.find(peeked.model)
    if found is None:
        served = ", ".join(sorted(fleet.names())[:20]) or "none yet"
        raise RequestError(
            ErrorKind.MODEL_NOT_FOUND,
            f"model {peeked.model!r} is not served by this cluster; served: {served}",
            param="model",
        )
    pool, adapter = found
    job = Job(exchange, api, body, peeked, pool)
    job.deadline_s = exchange.arrived_s + min(total_s, _deadline_s(head, total_s))
    if now_s >= job.deadline_s:
        raise RequestError(ErrorKind.DEADLINE_EXCEEDED, "the deadline had passed on arrival")
    job.describe(adapter)
    return job


def _deadline_s(head: RequestHead, default_s: float) -> float:
    given = head.get(names.DEADLINE_MS)
    if given is None or not given.isdigit() or len(given) > 12:
        return default_s
    return int(given) / 1e3


def returned(head: ResponseHead, pod: Pod) -> Headers:
    """Headers of a pod's answer for the caller, with the pod's name."""
    dropped = names.NOT_RETURNED
    connection = head.get(b"connection")
    if connection is not None and connection not in (b"keep-alive", b"close"):
        dropped = dropped | {token.strip().lower() for token in connection.split(b",")}
    headers = [item for item in head.headers if item[0] not in dropped]
    headers.append((names.POD, pod.spec.id.encode()))
    return headers
