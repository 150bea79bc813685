"""Configuration files are read strictly, and every complaint names line, field, value and fix."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest

from gir.model.policy.base import Section, Share
from gir.settings import FILE_BYTES_MAX, ConfigError, Secret, host_and_port, parse, read_text


class Item(Section, frozen=True, kw_only=True):
    name: str
    share: Share = 0.5
    mode: Literal["fast", "slow"] = "fast"


class Example(Section, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:1"
    count: Annotated[int, msgspec.Meta(ge=1)] = 1
    items: tuple[Item, ...] = ()
    token: Secret | None = None


def complaint(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, Example, source="f.yaml")
    return str(caught.value)


def test_what_is_said_is_taken_and_what_is_not_has_its_default() -> None:
    assert parse("items: [{name: a, share: 0.25}]", Example, source="f") == Example(items=(Item(name="a", share=0.25),))
    assert parse("", Example, source="f") == Example()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nlisten: a\ncuont: 2\n", "f.yaml:3: cuont is no known key; did you mean count?"),
        ("zzz: 1", "f.yaml:1: zzz is no known key; known here: count, items, listen, token"),
        ("items:\n- name: a\n  shar: 1", "f.yaml:3: items[0].shar is no known key; did you mean share?"),
        ("items:\n- share: 1", "f.yaml:2: items[0].name is missing; add it"),
        ("items: [{name: a, share: 2}]", "f.yaml:1: items[0].share is 2: write a number from 0 to 1"),
        ("items: [{name: a, mode: fest}]", "f.yaml:1: items[0].mode is 'fest': write fast or slow"),
        ("items: [{name: 7}]", "f.yaml:1: items[0].name is 7: write text; put it in quotes"),
        ("listen: yes", "f.yaml:1: listen is true: write text; put it in quotes"),
        ("count: 0", "f.yaml:1: count is 0: write an integer of at least 1"),
        ("count: .nan", "f.yaml:1: count is nan: give a finite number"),
        ("items: [{name: a, share: .inf}]", "f.yaml:1: items[0].share is inf: give a finite number"),
        ("count: 1\ncount: 2", "f.yaml:2: count is given twice, first on line 1; keep one of them"),
        (
            "items: [{name: a, name: b}]",
            "f.yaml:1: items[0].name is given twice, first on line 1; keep one of them",
        ),
        ("listen: &a x\ntoken: *a", "f.yaml:2: token is an alias of an anchor; write the value out"),
        ("- 1", "f.yaml:1: the file is a list: write a mapping"),
        ("items: [", "f.yaml:2: did not find expected node content; correct the YAML there"),
        ("listen: !!python/name:os.system x", "f.yaml:1: could not determine a constructor for the tag"),
        ("listen: 2026-13-45", "f.yaml: month must be in 1..12; correct the value, or put it in quotes if it is text"),
        ("listen: \x07", "f.yaml: unacceptable character #x0007"),
        ("? [a]\n: 1", "f.yaml:1: found unhashable key; correct the YAML there"),
        ("listen: " + "[" * 2_000, "f.yaml:1: exceeded maximum nesting depth"),
    ],
)
def test_every_complaint_names_line_field_value_and_fix(text: str, message: str) -> None:
    assert complaint(text).startswith(message)


@pytest.mark.parametrize("text", ["token: s3cret", "token: {value: [s3cret]}", "token: {value: s3cret, valeu: 1}"])
def test_a_secret_appears_in_no_complaint(text: str) -> None:
    assert "s3cret" not in complaint(text)


def test_long_values_are_cut() -> None:
    assert len(complaint(f"count: {'x' * 10_000}")) < 200


def test_a_secret_comes_from_exactly_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t").write_text("from-file\n")
    monkeypatch.setenv("GIR_TEST_TOKEN", "from-env")
    assert Secret(value="given").read("token") == "given"
    assert Secret(env="GIR_TEST_TOKEN").read("token") == "from-env"
    assert Secret(file="t").read("token", tmp_path) == "from-file"
    for secret, words in (
        (Secret(), "token: give exactly one of env, file and value"),
        (Secret(env="A", value="b"), "token: give exactly one"),
        (Secret(env="GIR_TEST_ABSENT"), "token: the environment variable GIR_TEST_ABSENT holds no usable credential"),
        (Secret(value="a b"), "token: value holds no usable credential"),
        (Secret(file="absent"), "No such file"),
    ):
        with pytest.raises(ConfigError, match=words):
            secret.read("token", tmp_path)


def test_a_secret_does_not_show_itself() -> None:
    assert "s3cret" not in repr(Example(token=Secret(value="s3cret")))


def test_unreadable_files_are_said_so(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "big").write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    for name, words in (
        ("absent", "No such file"),
        ("latin", "byte 0 is not UTF-8"),
        ("big", "larger than"),
        ("", "s a dir"),
    ):
        with pytest.raises(ConfigError, match=words):
            read_text(tmp_path / name)


def test_addresses() -> None:
    assert host_and_port("127.0.0.1:80", "listen") == ("127.0.0.1", 80)
    assert host_and_port("[::1]:80", "listen") == ("::1", 80)
    for text in ("", "80", ":80", "host", "host:", "host:x", "host:70000", "::1:80", "[::1]"):
        with pytest.raises(ConfigError, match="listen is"):
            host_and_port(text, "listen")
