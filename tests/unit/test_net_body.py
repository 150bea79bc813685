"""Request bodies: complete, bounded, and stricter than the grammar where strictness costs nobody anything."""

import pytest

from gir.model.errors import ErrorKind, RequestError
from gir.net.body import BodyReader, ChunkedReader, LengthReader

CHUNKED = b"3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n"


def feed(reader: BodyReader, data: bytes, step: int) -> bytes | None:
    """Feed `data` in pieces of `step` bytes; what the reader left over, None while it wants more."""
    for start in range(0, len(data), step):
        rest = reader.feed(data[start : start + step])
        if rest is not None:
            return rest + data[start + step :]
    return None


@pytest.mark.parametrize("step", range(1, len(CHUNKED) + 5))
def test_a_chunked_body_reads_the_same_however_it_is_cut(step: int) -> None:
    reader = ChunkedReader(100)
    assert feed(reader, CHUNKED + b"NEXT", step) == b"NEXT"
    assert reader.received == 13
    assert reader.body() == b"abc0123456789"


@pytest.mark.parametrize("step", range(1, 12))
def test_a_body_of_known_length_leaves_the_next_request_alone(step: int) -> None:
    reader = LengthReader(6)
    assert feed(reader, b"abcdefNEXT", step) == b"NEXT"
    assert reader.body() == b"abcdef"


def test_an_incomplete_body_is_not_a_body() -> None:
    assert feed(LengthReader(6), b"abcde", 2) is None
    assert feed(ChunkedReader(100), CHUNKED[:-1], 3) is None


@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_chunked_body_is_refused_at_one_byte_over_the_bound(step: int) -> None:
    assert feed(ChunkedReader(13), CHUNKED, step) == b""
    with pytest.raises(RequestError) as caught:
        feed(ChunkedReader(12), CHUNKED, step)
    assert caught.value.kind is ErrorKind.BODY_TOO_LARGE


def test_a_huge_chunk_is_refused_when_announced() -> None:
    reader = ChunkedReader(1000)
    with pytest.raises(RequestError) as caught:
        reader.feed(b"FFFFFFFFFFFFFFFF\r\n")
    assert caught.value.kind is ErrorKind.BODY_TOO_LARGE


ODD = {
    "extension": b"3;a=b\r\nabc\r\n0\r\n\r\n",
    "extension on the last chunk": b"0;a\r\n\r\n",
    "bare LF in the size line": b"3\nabc\r\n0\r\n\r\n",
    "space after the size": b"3 \r\nabc\r\n0\r\n\r\n",
    "sign": b"+3\r\nabc\r\n0\r\n\r\n",
    "prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
    "underscore": b"1_0\r\n",
    "empty size": b"\r\nabc\r\n0\r\n\r\n",
    "no digits": b"xyz\r\n",
    "too many digits": b"00000000000000003\r\nabc\r\n",
    "endless line": b"3" * 40,
    "data longer than its size": b"3\r\nabcd\r\n0\r\n\r\n",
    "data followed by bare LF": b"3\r\nabc\n0\r\n\r\n" + b" " * 20,
    "trailer": b"0\r\nX: y\r\n\r\n",
    "long trailer": b"0\r\nX-Something-Long: yyyyyyyyyyyyyyyyyyy\r\n\r\n",
}


@pytest.mark.parametrize("step", [1, 4, 100])
@pytest.mark.parametrize("data", ODD.values(), ids=ODD.keys())
def test_odd_chunks_are_refused(data: bytes, step: int) -> None:
    with pytest.raises(RequestError) as caught:
        feed(ChunkedReader(10_000), data, step)
    assert caught.value.kind is ErrorKind.BAD_FRAMING
