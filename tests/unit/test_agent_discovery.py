"""Pods from a file: read again when it changes, kept when it is bad, obeyed when it is empty."""

import asyncio
from pathlib import Path

import pytest

from gir.clock import ManualClock
from gir.settings import ConfigError
from gir.tasks import TaskSet
from tier1_agent.discovery import PodsWatch, read_pods
from tier1_agent.pods import PodSpec

ONE = "pods: [{url: 'http://127.0.0.1:8001', model: llama}]\n"
TWO = "pods: [{url: 'http://127.0.0.1:8001', model: llama}, {url: 'http://127.0.0.1:8002', model: llama}]\n"


def specs_of(tmp_path: Path, text: str) -> tuple[PodSpec, ...]:
    path = tmp_path / "pods.yaml"
    path.write_text(text)
    return read_pods(path)


def test_every_field_of_a_pod_is_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("engine-key\n")
    text = f"""\
pods:
  - url: http://10.0.0.1:8000/engine/
    name: gpu-7
    model: llama
    slots: 32
    metrics: http://10.0.0.1:9400/metrics
    adapters: [tuned]
    adapters_loadable: [other]
    context_tokens_max: 8192
    labels: {{gpu: h100}}
    api_key_file: {tmp_path / "key"}
"""
    (spec,) = specs_of(tmp_path, text)
    assert (spec.id, spec.url, spec.model, spec.slots) == ("gpu-7", "http://10.0.0.1:8000/engine", "llama", 32)
    assert spec.metrics_url == "http://10.0.0.1:9400/metrics"
    assert (spec.adapters_resident, spec.adapters_loadable) == ({"tuned"}, {"other"})
    assert (spec.context_tokens_max, spec.labels, spec.api_key) == (8_192, {"gpu": "h100"}, "engine-key")


def test_the_example_file_is_good() -> None:
    specs = read_pods(Path(__file__).parents[2] / "deploy" / "examples" / "pods.yaml")
    assert [spec.id for spec in specs] == ["127.0.0.1:8001", "gpu-7", "127.0.0.1:8003"]


def test_defaults_are_the_usual_ones(tmp_path: Path) -> None:
    (spec,) = specs_of(tmp_path, ONE)
    assert (spec.id, spec.metrics_url, spec.slots) == ("127.0.0.1:8001", "http://127.0.0.1:8001/metrics", None)
    (plain,) = specs_of(tmp_path, ONE.replace("model: llama", "model: llama, metrics: false"))
    assert plain.metrics_url is None


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{url: 'gopher://x', model: m}", ["pods[0].url", "gopher", "http://host:port"]),
        ("{url: 'http://x:99999', model: m}", ["pods[0].url", "http://x:99999"]),
        ("{url: '10.0.0.1:8000', model: m}", ["pods[0].url"]),
        ("{url: 'http://x:1/v1', model: m}", ["pods[0].url", "leave out /v1"]),
        ("{url: 'http://x:1', model: m, metrics: nowhere}", ["pods[0].metrics"]),
        ("{url: 'http://x:1'}", ["pods[0].model is missing"]),
        ("{url: 'http://x:1', model: m, slots: 0}", ["pods[0].slots is 0", "from 1 to 65536"]),
        ("{url: 'http://x:1', model: m, slot: 1}", ["pods[0].slot is no known key", "did you mean slots?"]),
        ("{url: 'http://x:1', model: m, name: 'a b'}", ["pods[0].name is 'a b'"]),
        ("{url: 'http://x:1', model: m}, {url: 'http://x:1', model: m}", ["pods[1].name", "another pod has it"]),
        ("{url: 'http://x:1', model: m, name: a}, {url: 'http://x:1', model: m}", ["pods[1].url", "pod 'a' has it"]),
        ("{url: 'http://x:1', model: m, api_key_file: /nowhere/key}", ["/nowhere/key"]),
    ],
)
def test_a_bad_entry_is_named_with_its_value_and_a_fix(tmp_path: Path, entry: str, expected: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        specs_of(tmp_path, f"pods: [{entry}]\n")
    for part in expected:
        assert part in str(refused.value)


def test_one_server_may_have_several_models(tmp_path: Path) -> None:
    specs = specs_of(tmp_path, "pods: [{url: 'http://x:1', model: m, name: a}, {url: 'http://x:1', model: n, name: b}]")
    assert [spec.id for spec in specs] == ["a", "b"]


class Watched:
    """A file, its watch, and what came out of it."""

    def __init__(self, tmp_path: Path, text: str) -> None:
        self.path = tmp_path / "pods.yaml"
        self.path.write_text(text)
        self.applied: list[int] = []
        self.errors: list[str] = []
        self.watch = PodsWatch(
            self.path,
            apply=lambda specs: self.applied.append(len(specs)),
            on_error=self.errors.append,
            clock=ManualClock(),
            poll_s=1.0,
        )
        self.watch.look()


def test_a_changed_file_is_applied_and_an_unchanged_one_is_not(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ONE)
    assert not watched.watch.look()
    watched.path.write_text(TWO)
    assert watched.watch.look()
    assert watched.applied == [1, 2]


def test_a_bad_file_keeps_the_last_good_pods_and_says_why_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ONE)
    watched.path.write_text("pods: [{url: 'nonsense', model: m}]\n")
    watched.watch.look()
    watched.watch.look()
    assert watched.applied == [1]
    assert len(watched.errors) == 1
    assert watched.watch.error is not None
    watched.path.write_text(TWO)
    watched.watch.look()
    assert (watched.applied, watched.watch.error) == ([1, 2], None)


def test_a_file_that_disappears_keeps_the_last_good_pods(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ONE)
    watched.path.unlink()
    watched.watch.look()
    assert watched.applied == [1]
    assert "pods.yaml" in watched.errors[0]


def test_a_file_that_names_no_pod_is_obeyed(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ONE)
    watched.path.write_text("pods: []\n")
    watched.watch.look()
    assert watched.applied == [1, 0]


async def test_the_watch_goes_on_looking(tmp_path: Path) -> None:
    watched = Watched(tmp_path, ONE)
    tasks = TaskSet(lambda name, error: None)
    tasks.spawn(watched.watch.run(), name="watch")
    watched.path.write_text(TWO)
    async with asyncio.timeout(5):
        while len(watched.applied) < 2:
            await asyncio.sleep(0.001)
    await tasks.close()
