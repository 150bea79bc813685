"""The history tells apart what must be told apart: failed early, failed late, and lied."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos.history import Record, Recorder, percentile, read, summarize, write
from chaos.load import LoadPlan, Planned, timetable


def listen(
    *pieces: bytes, stream: bool = True, status: int = 200, ended: str = "complete", expected: int = 2
) -> Record:
    record = Record(number=1, model="llama", stream=stream, sent_s=10.0, tokens_expected=expected)
    recorder = Recorder(record)
    if status:
        recorder.head(status, [("x-gir-cluster", "eu-1"), ("x-gir-attempts", "2"), ("x-gir-model", "llama-b")], 10.1)
    for index, piece in enumerate(pieces):
        recorder.data(piece, 10.2 + index / 10)
    recorder.end(ended, 11.0)
    return record


def token(number: int) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"tok-%04d "}}]}\n\n' % number


DONE = b"data: [DONE]\n\n"
ERROR = b'data: {"error":{"message":"gir: lost","type":"server_error","code":"upstream_failed"}}\n\n'


def verdict(record: Record) -> tuple[bool, bool, bool, bool]:
    return record.ok, record.failed_before_token, record.failed_after_token, record.lie


def test_blank_lines_between_events_hide_none() -> None:
    assert listen(token(1), token(2), b": comment\n\n\r\n\r\n", DONE).ok


def test_a_whole_stream_is_ok_with_its_times() -> None:
    record = listen(b'data: {"choices":[{"delta":{"role":"assistant"}}]}\n\n', token(1), token(2), DONE)
    assert verdict(record) == (True, False, False, False)
    assert record.first_token_s == pytest.approx(10.3)
    assert record.chunk_ms == pytest.approx([300.0, 400.0])
    assert (record.cluster, record.served, record.attempts, record.tokens) == ("eu-1", "llama-b", 2, 2)


def test_events_split_anywhere_count_the_same() -> None:
    whole = token(1) + token(2) + DONE
    for cut in range(len(whole)):
        record = listen(whole[:cut], whole[cut:])
        assert record.ok, cut


def test_a_json_answer_is_read_at_its_end() -> None:
    record = listen(b'{"choices":[{"message":{"content":"tok-0001 ', b'tok-0002 "}}]}', stream=False)
    assert verdict(record) == (True, False, False, False)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (listen(status=0, ended="refused"), (False, True, False, False)),
        (listen(b'{"error":{"message":"gir: full","code":"no_capacity"}}', status=503), (False, True, False, False)),
        (listen(ERROR), (False, True, False, False)),
        (listen(token(1), ERROR), (False, False, True, False)),
        (listen(token(1), ended="reset"), (False, False, True, False)),
        (listen(token(1)), (False, False, True, True)),  # framed as complete, yet neither end nor error was said
        (listen(token(1), DONE), (True, False, False, True)),  # one token short
        (listen(token(2), token(1), DONE), (False, False, True, True)),
        (listen(token(1), token(1), token(2), DONE), (False, False, True, True)),
    ],
)
def test_each_ending_has_its_verdict(record: Record, expected: tuple[bool, bool, bool, bool]) -> None:
    assert verdict(record) == expected


def test_a_client_that_was_told_to_leave_is_nobodys_failure() -> None:
    record = listen(token(1), ended="timeout")
    assert record.failed_after_token
    record.leaves = True
    assert verdict(record) == (False, False, False, False)
    assert summarize([record])["left"] == 1


def test_error_codes_are_kept() -> None:
    assert listen(token(1), ERROR).error_code == "upstream_failed"
    assert listen(b"<html>", status=502).error == "<html>"


def test_a_summary_counts_every_request_once() -> None:
    records = [listen(token(1), token(2), DONE), listen(status=0, ended="refused"), listen(token(1), ERROR)]
    records.append(Record(number=4, model="llama", stream=True, ended="skipped"))
    summary = summarize(records)
    counted = [summary[name] for name in ("ok", "failed_before_token", "failed_after_token", "skipped")]
    assert counted == [1, 1, 1, 1]
    assert summary["cluster"] == {"eu-1": 2}
    assert summary["retried"] == 2


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0], 0.99) == 1.0


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    records = [listen(token(1), token(2), DONE), listen(status=0, ended="refused")]
    write(tmp_path / "history.jsonl", records)
    assert read(tmp_path / "history.jsonl") == records
    (tmp_path / "bad.jsonl").write_text('{"number":1}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl:1"):
        read(tmp_path / "bad.jsonl")


def test_the_timetable_is_open_and_repeatable() -> None:
    plan = LoadPlan(url="http://127.0.0.1:1", rps=50, duration_s=20, models=("a", "b"), keys=(("k", "secret"),))
    first, second = list(timetable(plan)), list(timetable(plan))
    assert [planned.request for planned in first] == [planned.request for planned in second]
    assert 850 <= len(first) <= 1_150
    assert all(b"authorization: Bearer secret\r\n" in planned.request for planned in first)
    assert {planned.record.model for planned in first} == {"a", "b"}
    leaving = list(timetable(msgspec.structs.replace(plan, leave_share=0.5)))
    assert 0.4 < sum(planned.record.leaves for planned in leaving) / len(leaving) < 0.6
    assert all(planned.within_s <= (1.0 if planned.record.leaves else 60.0) for planned in leaving)
    even = list(timetable(LoadPlan(url="http://127.0.0.1:1", rps=10, duration_s=1, models=("a",), poisson=False)))
    assert [round(planned.at_s, 6) for planned in even][:3] == [0.1, 0.2, 0.3]


def test_shared_prefixes_begin_alike() -> None:
    plan = LoadPlan(url="http://127.0.0.1:1", rps=50, duration_s=2, models=("a",), prefixes=3, prefix_tokens=100)
    starts = {planned.request.partition(b'"content": "')[2][:300] for planned in timetable(plan)}
    assert len(starts) == 3


def body(planned: Planned) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(planned.request.partition(b"\r\n\r\n")[2])
    return found


def test_requests_come_from_as_many_users_as_the_plan_has() -> None:
    plan = LoadPlan(url="http://127.0.0.1:1", rps=50, duration_s=2, models=("a",))
    assert all("user" not in body(planned) for planned in timetable(plan))
    of = [body(planned)["user"] for planned in timetable(msgspec.structs.replace(plan, users=3))]
    assert sorted(set(of)) == ["user-0", "user-1", "user-2"]
