"""A configuration file is understood, or refused in words that name the field, its value and the way out."""

import re
from pathlib import Path

import pytest

from gir.model.errors import ErrorKind
from gir.settings import ConfigError
from tier1_agent.config import AgentConfig, load
from tier1_agent.scorers import PRESETS

GOOD = """\
cluster: eu-1
region: eu-west
tier: reserved
token: {value: secret-1}
pods: {static: [{url: "http://127.0.0.1:8001", model: llama, slots: 8}]}
"""


SEVERAL_FAULTS = """\
pods:
  static:
    - {url: "ftp://x", model: m}
    - {url: "http://h:1/v1", model: m}
    - {url: "http://h:1", model: m, api_key_file: k}
listen: nowhere
routers: [a, b:1]
gate: {queue_max: 5, wait_max_s: 5}
"""


def load_text(tmp_path: Path, text: str) -> AgentConfig:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    return load(path)


def complaint(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_text(tmp_path, text)
    return str(refused.value)


def test_a_small_file_is_enough(tmp_path: Path) -> None:
    config = load_text(tmp_path, GOOD)
    assert config.listen == "127.0.0.1:8101"
    assert config.pool_settings().weights == PRESETS["weighted"]
    assert config.pool_settings().stale_after_s == 0.75
    assert config.gate_settings().overflow is ErrorKind.OVERLOADED


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("listne: 127.0.0.1:1\n", ["listne is no known key", "did you mean listen?"]),
        ("cluster: other\n", ["agent.yaml:6", "cluster is given twice"]),
        ("scrape: {interval_s: 0}\n", ["scrape.interval_s is 0", "from 0.05 to 10"]),
        ("scrape: {interval_s: fast}\n", ["scrape.interval_s is 'fast'", "write a number"]),
        ("listen: 8101\n", ["listen is 8101"]),
        ("beat_tls: yes please\n", ["beat_tls is 'yes please': write a mapping", "keys: ca, cert, key"]),
        ("listen: nowhere\n", ["listen is 'nowhere'", "host:port"]),
        ("routers: [127.0.0.1]\n", ["routers[0] is '127.0.0.1'", "host:port"]),
        ("advertise_url: ftp://x\n", ["advertise_url", "ftp", "http://host:port"]),
        ("listen: 0.0.0.0:8101\nrouters: [r:7070]\n", ["listen is '0.0.0.0:8101'", "as advertise_url"]),
        ("listen: '[::]:8101'\nrouters: [r:7070]\n", ["listen is '[::]:8101'", "advertise_url"]),
        ("picker: {preset: best}\n", ["picker.preset is 'best'"]),
        ("picker: {weights: {speed: 1}}\n", ["picker.weights", "speed", "expectedWork"]),
        ("picker: {weights: {prefix: -1}}\n", ["picker.weights", "prefix"]),
        ("picker: {preset: roundrobin, weights: {prefix: 1}}\n", ["roundrobin"]),
        ("gate: {queue_max: 5}\n", ["gate.queue_max is 5", "concurrent_max_per_pod"]),
        ("gate: {wait_max_s: 5}\n", ["gate.wait_max_s is 5,", "concurrent_max_per_pod"]),
        ("gate: {overflow_status: 500}\n", ["gate.overflow_status is 500"]),
        ("forward: {bodies_bytes_max: 9}\n", ["forward.bodies_bytes_max is 9, below body_bytes_max 33554432"]),
        ("admin: {listen: here}\n", ["admin.listen is 'here'"]),
        ("zone: [1\n", ["agent.yaml:7", "correct the YAML"]),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_a_fix(tmp_path: Path, change: str, expected: list[str]) -> None:
    message = complaint(tmp_path, GOOD + change)
    assert "agent.yaml" in message
    for part in expected:
        assert part in message
    assert all(re.match(r".*agent\.yaml:[67]: [a-z]", line) for line in message.splitlines())


def test_what_fits_its_type_is_judged_beside_what_does_not(tmp_path: Path) -> None:
    text = GOOD + "listen: nowhere\ngate: {queue_max: -1}\nscrape: {interval_s: no}\n"
    told = [line.split("agent.yaml:")[1].split(" is ")[0] for line in complaint(tmp_path, text).splitlines()]
    assert told == ["6: listen", "7: gate.queue_max", "8: scrape.interval_s"]
    text = GOOD.replace("token: {value: secret-1}\n", "insecure_no_auth: maybe\n")
    assert len(complaint(tmp_path, text).splitlines()) == 1


def test_every_fault_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("pods:")] + SEVERAL_FAULTS
    told = [line.split("agent.yaml:")[1] for line in complaint(tmp_path, text).splitlines()]
    assert [line.split(" is ")[0].split(": /")[0] for line in told] == [
        "7: pods.static[0].url",
        "8: pods.static[1].url",
        "9: pods.static[2].api_key_file",
        "10: listen",
        "11: routers[0]",
        "12: gate.queue_max",
        "12: gate.wait_max_s",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("cluster", "cluster is missing"),
        ("token", "insecure_no_auth"),
        ("pods", "pods: give either file"),
    ],
)
def test_what_is_missing_is_named(tmp_path: Path, line: str, expected: str) -> None:
    text = "".join(row for row in GOOD.splitlines(keepends=True) if not row.startswith(line))
    assert expected in complaint(tmp_path, text)


@pytest.mark.parametrize("text", ["", "- 1\n", "just text\n", "? {a: 1}\n: 2\n", "[" * 2_000])
def test_a_file_of_another_kind_is_refused_not_fatal(tmp_path: Path, text: str) -> None:
    assert complaint(tmp_path, text)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nobody\.yaml"):
        load(tmp_path / "nobody.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"cluster: \xff\xfe\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "binary.yaml")


def test_no_auth_must_be_spelled_out(tmp_path: Path) -> None:
    text = GOOD.replace("token: {value: secret-1}\n", "insecure_no_auth: true\n")
    assert load_text(tmp_path, text).token is None


def test_secrets_come_from_the_environment_or_a_file_and_are_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_TOKEN", "from-env")
    (tmp_path / "token").write_text("from-file\n")
    by_env = load_text(tmp_path, GOOD.replace("{value: secret-1}", "{env: AGENT_TOKEN}"))
    by_file = load_text(tmp_path, GOOD.replace("value: secret-1", f"file: {tmp_path / 'token'}"))
    assert by_env.token is not None
    assert by_file.token is not None
    assert (by_env.token.read("token"), by_file.token.read("token")) == ("from-env", "from-file")
    assert "secret-1" not in repr(load_text(tmp_path, GOOD))


@pytest.mark.parametrize("token", ["{}", "{env: NOT_SET_ANYWHERE}", "{value: a, env: b}", "{value: 'two words'}"])
def test_a_token_nobody_could_use_is_refused(tmp_path: Path, token: str) -> None:
    assert "token" in complaint(tmp_path, GOOD.replace("{value: secret-1}", token))


def test_weights_are_put_over_the_presets(tmp_path: Path) -> None:
    config = load_text(tmp_path, GOOD + "picker: {preset: prefixaware, weights: {runningRequests: 3}}\n")
    weights = config.pool_settings().weights
    assert (weights.running_requests, weights.prefix) == (3.0, PRESETS["prefixaware"].prefix)


def test_a_gate_that_can_be_enforced_is_taken(tmp_path: Path) -> None:
    config = load_text(tmp_path, GOOD + "gate: {concurrent_max_per_pod: 4, queue_max: 5, overflow_status: 503}\n")
    assert config.pool_settings().concurrent_max_per_pod == 4
    assert config.gate_settings().overflow is ErrorKind.NO_CAPACITY


def test_a_pods_file_is_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    text = GOOD.replace('static: [{url: "http://127.0.0.1:8001", model: llama, slots: 8}]', "file: pods.yaml")
    assert "pods.file is 'pods.yaml'" in complaint(tmp_path, text)
    (tmp_path / "pods.yaml").write_text("pods: []\n")
    assert load_text(tmp_path, text).pods.file == "pods.yaml"
