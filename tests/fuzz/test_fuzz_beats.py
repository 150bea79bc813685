"""Whatever arrives on a beat stream is read or refused with a reason; what is read makes sense."""

import math

import pytest

from gir.model.beat import AgentHello, BeatReport
from gir.model.ids import ClusterId
from gir.wire import beats as wire
from gir.wire.v1 import fleet_pb2 as pb
from tests.fuzz.mutate import corpus, mutants

WORDS = (
    *(
        b"\x00",
        b"\xff",
        b"\x0a",
        b"\x12",
        b"\x1a\x02",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x0b",
        b"\x0c",
        b"\x7f",
    ),
    *(b"\x00\x00\x00\x00\x00\x00\xf8\x7f", b"\x00\x00\x00\x00\x00\x00\xf0\xff", b"llama", b"\xc3\x28", b"a" * 300),
)


def decoded(message: pb.AgentMessage) -> list[AgentHello | BeatReport | wire.BeatRefused]:
    """What each part of the message is read as, or refused by."""
    parts: list[AgentHello | BeatReport | wire.BeatRefused] = []
    for decode in (
        lambda: wire.decode_hello(message.hello),
        lambda: wire.decode_beat(message.beat, cluster=ClusterId("eu-1")),
    ):
        try:
            parts.append(decode())
        except wire.BeatRefused as refused:
            parts.append(refused)
    return parts


def examine(data: bytes) -> None:
    message = wire.parse_agent_message(data)
    if isinstance(message, wire.BeatRefused):
        assert message.reason in ("unreadable", "too_large")
        return
    wire.decode_goodbye(message.goodbye)
    for part in decoded(message):
        if isinstance(part, wire.BeatRefused):
            assert part.reason.isidentifier()
            assert part.field
            assert len(str(part)) < 400
        elif isinstance(part, BeatReport):
            check(part)


def check(report: BeatReport) -> None:
    assert len({pool.model for pool in report.pools}) == len(report.pools)
    for pool in report.pools:
        assert 0 <= pool.slots_free <= pool.slots_total
        assert pool.model.isprintable()
        for rate in (pool.ttft_p50_s, pool.ttft_p95_s, pool.error_rate, pool.prefill_tokens_per_s):
            assert rate is None or (math.isfinite(rate) and rate >= 0.0)


@pytest.mark.parametrize("name", [name for name, _ in corpus("beat")])
def test_corpus_is_read_or_refused(name: str) -> None:
    data = dict(corpus("beat"))[name]
    for end in range(len(data) + 1):
        examine(data[:end])


@pytest.mark.parametrize("seed", range(3))
def test_damaged_messages_are_read_or_refused(seed: int) -> None:
    for data in mutants("beat", seed, 1_000, WORDS):
        examine(data)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_damaged_messages_are_read_or_refused(seed: int) -> None:
    for data in mutants("beat", seed, 20_000, WORDS):
        examine(data)
