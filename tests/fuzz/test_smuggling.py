"""Request smuggling, with h11 as the independent reader.

Whatever a client sends: either it is refused with 4xx and the connection closes, or h11 reads the same requests out of
it. And whatever goes upstream, h11 reads as exactly one request with the same body and nothing behind it.
"""

import asyncio
import itertools
import random
import re
from collections.abc import Iterator

import h11
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gir.net.exchange import Exchange
from gir.net.render import request_head
from gir.wire.headers import HOP_BY_HOP
from tests.support.memory import MemoryClient

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def post(*lines: bytes, body: bytes = b"", line: bytes = b"POST /v1/x HTTP/1.1", host: bytes = b"Host: a") -> bytes:
    return b"\r\n".join([line, host, *lines]) + b"\r\n\r\n" + body


CORPUS = {
    "CL.TE": post(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=b"0\r\n\r\nG"),
    "TE.CL": post(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"5c\r\n" + SMUGGLED + b"\r\n0\r\n\r\n"),
    "TE.TE obfuscated by case and space": post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n" + SMUGGLED),
    "TE with trailing comma": post(b"Transfer-Encoding: chunked,", body=b"0\r\n\r\n" + SMUGGLED),
    "TE list": post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "TE twice": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: identity", body=b"0\r\n\r\n" + SMUGGLED),
    "TE space before colon": post(b"Transfer-Encoding : chunked", b"Content-Length: 3", body=b"0\r\n\r\n" + SMUGGLED),
    "TE folded": post(b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "TE after NUL": post(b"X: a\0", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + SMUGGLED),
    "CL twice": post(b"Content-Length: 0", b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED),
    "CL list": post(b"Content-Length: 0, %d" % len(SMUGGLED), body=SMUGGLED),
    "CL plus": post(b"Content-Length: +3", body=b"abc" + SMUGGLED),
    "CL hex": post(b"Content-Length: 0x3", body=b"abc" + SMUGGLED),
    "CL octal": post(b"Content-Length: 010", body=b"0123456789" + SMUGGLED),
    "CL inside a header value by bare LF": post(b"X: a\nContent-Length: 5", body=b"abcde"),
    "CL inside a header value by bare CR": post(b"X: a\rContent-Length: 5", body=b"abcde"),
    "bare LF line ends": b"POST /v1/x HTTP/1.1\nHost: a\nContent-Length: 3\n\nabc",
    "obs-fold": post(b"X: a", b"\tContent-Length: 3", body=b"abc"),
    "header before Host": b"POST /v1/x HTTP/1.1\r\n Host: b\r\nHost: a\r\n\r\n",
    "chunk extension": post(b"Transfer-Encoding: chunked", body=b"3;x=y\r\nabc\r\n0\r\n\r\n"),
    "chunk extension with bare LF": post(b"Transfer-Encoding: chunked", body=b"2;\nxx\r\n4c\r\n0\r\n\r\n" + SMUGGLED),
    "chunk size with bare LF": post(b"Transfer-Encoding: chunked", body=b"3\nabc\r\n0\r\n\r\n"),
    "chunk size with bare CR": post(b"Transfer-Encoding: chunked", body=b"3\rabc\r\n0\r\n\r\n" + b"x" * 20),
    "chunk size with spaces": post(b"Transfer-Encoding: chunked", body=b"3  \r\nabc\r\n0\r\n\r\n"),
    "chunk size signed": post(b"Transfer-Encoding: chunked", body=b"-1\r\nabc\r\n0\r\n\r\n"),
    "chunk size underscored": post(b"Transfer-Encoding: chunked", body=b"1_0\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n"),
    "chunk longer than its size": post(b"Transfer-Encoding: chunked", body=b"3\r\nabcd\r\n0\r\n\r\n"),
    "trailer that frames": post(b"Transfer-Encoding: chunked", body=b"0\r\nContent-Length: 5\r\n\r\nabcde"),
    "Host twice": post(b"Host: b"),
    "Host with bare CR": post(host=b"Host: a\rb"),
    "no Host": post(host=b"X: y"),
    "target with space": post(line=b"POST /v1/x /y HTTP/1.1"),
    "target with LF": post(line=b"POST /v1/x\n/y HTTP/1.1"),
    "HTTP/0.9 behind a request": post() + b"GET /smuggled\r\n\r\n",
    "empty line before a request": b"\r\n" + post(b"Content-Length: 1", body=b"x"),
    "empty line between requests": post(b"Content-Length: 1", body=b"x") + b"\r\n" + SMUGGLED,
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "control character as line end": post(b"X: a\x0bY: b"),
    "upgrade with a request inside": post(
        b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 0", body=b"\n" + SMUGGLED
    ),
}  # fmt: skip

FINE = {
    "plain": post(b"Content-Length: 3", body=b"abc"),
    "chunked": post(b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"),
    "chunked with leading zeros": post(b"Transfer-Encoding: chunked", body=b"003\r\nabc\r\n00\r\n\r\n"),
    "body that looks like a request": post(b"Content-Length: %d" % len(SMUGGLED), body=SMUGGLED),
    "pipelined": post(b"Content-Length: 3", body=b"abc") + SMUGGLED + post(b"Content-Length: 1", body=b"x"),
    "connection names headers": post(b"Connection: x-foo, keep-alive", b"X-Foo: 1", b"Content-Length: 1", body=b"x"),
    "upgrade offered": post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 3", body=b"abc"),
}


def h11_requests(data: bytes) -> tuple[list[tuple[str, bytes, bytes]], bool]:
    """Requests h11 reads out of `data`, and whether it read everything without complaint."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    requests = []
    try:
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                head, body = (event.method.decode(), bytes(event.target)), b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                requests.append((*head, body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is h11.MUST_CLOSE:
                    return requests, True
                connection.start_next_cycle()
            elif event in (h11.NEED_DATA, h11.PAUSED):
                return requests, not connection.trailing_data[0]
            else:
                return requests, True
    except h11.RemoteProtocolError:
        return requests, False


async def run(data: bytes, cuts: list[int]) -> tuple[MemoryClient, list[bytes]]:
    """Serve `data`, cut into reads at `cuts`; the client, and what a proxy would have sent upstream."""
    upstream: list[bytes] = []

    async def forward(exchange: Exchange) -> None:
        headers = [header for header in exchange.head.headers if header[0] not in HOP_BY_HOP]
        body = await exchange.read_body()
        target = exchange.head.path.encode() + (b"?" + exchange.head.query.encode() if exchange.head.query else b"")
        upstream.append(request_head(exchange.head.method, target, b"engine:8000", headers, len(body)) + body)
        exchange.respond(200, [], b"ok")

    client = MemoryClient(forward)
    edges = [0, *cuts, len(data)]
    await client.send(data[start:end] for start, end in itertools.pairwise(edges))
    client.close()
    return client, upstream


def check(data: bytes, client: MemoryClient, upstream: list[bytes]) -> None:
    """The two promises of this module."""
    expected, _ = h11_requests(data)
    assert client.requests == expected[: len(client.requests)], "read differently than h11"
    for sent, (method, _, body) in zip(upstream, client.requests, strict=True):
        again, clean = h11_requests(sent)
        assert clean
        assert [(request[0], request[2]) for request in again] == [(method, body)], "not exactly one request upstream"
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", client.transport.written)]
    assert all(status in {100, 200} or 400 <= status < 500 for status in statuses)
    if any(status >= 400 for status in statuses):
        assert statuses[-1] >= 400
        assert client.hung_up, "refused and yet open for more"


@pytest.mark.parametrize("data", CORPUS.values(), ids=CORPUS.keys())
def test_what_parsers_may_disagree_about_is_refused_and_the_connection_closed(data: bytes) -> None:
    for step in (len(data), 1, 7):
        client, upstream = asyncio.run(run(data, list(range(step, len(data), step))))
        assert b"HTTP/1.1 4" in client.transport.written
        assert client.hung_up
        assert b"/smuggled" not in b"".join(target for _, target, _ in client.requests)
        check(data, client, upstream)


@pytest.mark.parametrize("data", FINE.values(), ids=FINE.keys())
def test_proper_requests_pass_however_they_are_cut(data: bytes) -> None:
    expected, clean = h11_requests(data)
    assert clean
    for step in (len(data), 1, 7):
        client, upstream = asyncio.run(run(data, list(range(step, len(data), step))))
        assert client.requests == expected
        check(data, client, upstream)


def test_headers_named_by_connection_and_hop_by_hop_headers_do_not_cross() -> None:
    data = post(
        b"Connection: X-Foo",
        b"X-Foo: secret",
        b"Keep-Alive: timeout=5",
        b"TE: trailers",
        b"Proxy-Authorization: Basic x",
        b"Upgrade: h2c",
        b"X-Bar: stays",
        b"Content-Length: 1",
        body=b"x",
    )
    _, (sent,) = asyncio.run(run(data, []))
    names = {line.partition(b":")[0].lower() for line in sent.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]}
    assert names == {b"host", b"x-bar", b"content-length"}


PIECES = [
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b",", b";", b"0\r\n\r\n", b"\r\n\r\n", b"chunked", b"\xff"),
    *(b"Content-Length: 3\r\n", b"Content-Length:0\r\n", b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n", SMUGGLED),
    *(b"Connection: close\r\n", b"Expect: 100-continue\r\n", b"HTTP/1.0", b"HTTP/1.1", b"3\r\nabc\r\n", b"a"),
]


def mutants(chance: random.Random, count: int) -> Iterator[bytes]:
    """Requests with pieces put in, taken out and swapped."""
    seeds = [*CORPUS.values(), *FINE.values()]
    for _ in range(count):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data) + 1)
            data[at : at + chance.choice([0, 0, 1, 3])] = chance.choice(PIECES)
        yield bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_mutated_requests_are_refused_or_read_as_h11_reads_them(seed: int) -> None:
    async def all_of_them() -> int:
        chance = random.Random(seed)
        accepted = 0
        for data in mutants(chance, 400):
            client, upstream = await run(data, sorted(chance.randrange(len(data)) for _ in range(chance.randrange(3))))
            check(data, client, upstream)
            accepted += len(client.requests)
        return accepted

    assert asyncio.run(all_of_them()) > 20, "the mutants must not all be refused"


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([*PIECES, b"POST /v1/x HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n", b"Host: a\r\n"]), max_size=12)
)
def test_requests_made_of_loose_pieces_are_refused_or_read_as_h11_reads_them(pieces: list[bytes]) -> None:
    data = b"POST /v1/x HTTP/1.1\r\nHost: a\r\n" + b"".join(pieces)
    client, upstream = asyncio.run(run(data, []))
    check(data, client, upstream)
