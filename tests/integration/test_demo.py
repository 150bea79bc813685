"""`gir demo` as a user runs it: ready in seconds, usable, and gone without a trace however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.demo import introduction
from chaos.faults.process import state
from chaos.fleet import call
from chaos.topology import demo

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]

START_S = 30.0
Start = Callable[..., tuple[subprocess.Popen[str], dict[str, Any]]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str, background: bool = False) -> tuple[subprocess.Popen[str], dict[str, Any]]:
        ready = tmp_path / "ready.json"
        command = [sys.executable, "-m", "gir.cli.main", "demo", "--ready-file", str(ready), *arguments]
        if background:  # as a shell without job control starts it: SIGINT is ignored
            command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        running.append(process)
        give_up_s = time.perf_counter() + START_S
        while not ready.exists():
            assert process.poll() is None, process.communicate()[0]
            assert time.perf_counter() < give_up_s, "the demo is not ready"
            time.sleep(0.05)
        return process, json.loads(ready.read_bytes())

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def everybody(ready: dict[str, Any]) -> list[int]:
    return [pid for member in (*ready["routers"], *ready["clusters"]) for pid in member["pids"]]


def all_gone(pids: list[int], within_s: float) -> bool:
    give_up_s = time.perf_counter() + within_s
    while any(state(pid) not in ("", "Z") for pid in pids):
        if time.perf_counter() > give_up_s:
            return False
        time.sleep(0.02)
    return True


def chat(ready: dict[str, Any], model: str) -> tuple[int, bytes]:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    return call("POST", f"{ready['router_url']}/v1/chat/completions", ready["api_key"], json.dumps(body).encode())


def test_the_ready_file_says_all_that_scripts_need_and_ctrl_c_leaves_nothing(start: Start) -> None:
    process, ready = start("--no-traffic")
    assert ready["models"] == demo().models
    shapes = [(c["name"], c["region"], c["tier"], len(c["pids"]), len(c["pods"])) for c in ready["clusters"]]
    assert shapes == [
        ("eu-reserved", "eu-west", "reserved", 2, 2),
        ("eu-burst", "eu-west", "on_demand", 2, 2),
        ("us-reserved", "us-east", "reserved", 2, 2),
    ]
    for model in ready["models"]:
        status, body = chat(ready, model)
        assert (status, b"tok-0001 tok-0002 " in body) == (200, True), body
    assert call("GET", f"{ready['clusters'][0]['agent_url']}/healthz")[0] == 200
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=10)
    assert process.returncode == 0, output
    assert all_gone(everybody(ready), 0.5)
    assert "curl -N" in output
    assert "OpenAI(base_url=" in output


def test_it_ends_by_itself_after_the_duration_and_reports_its_traffic(start: Start) -> None:
    process, ready = start("--duration", "6")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    assert all_gone(everybody(ready), 0.5)
    assert " 0 failed, 0 broken off later, first token p50 " in output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_nothing_survives_its_end(start: Start, number: signal.Signals) -> None:
    process, ready = start()
    os.kill(process.pid, number)
    process.wait(10)
    assert all_gone(everybody(ready), 3.0)


def test_a_script_can_end_what_it_put_in_the_background(start: Start) -> None:
    process, ready = start("--no-traffic", background=True)
    process.terminate()
    assert process.wait(10) == 0
    assert all_gone(everybody(ready), 0.5)


def test_a_killed_cluster_is_replaced_by_the_others(start: Start) -> None:
    _, ready = start("--no-traffic")
    for pid in ready["clusters"][0]["pids"]:
        os.kill(pid, signal.SIGKILL)
    assert [chat(ready, "llama-70b")[0] for _ in range(10)] == [200] * 10


def test_what_is_printed_can_be_pasted() -> None:
    pod = {"name": "eu-1", "pids": [11, 12]}
    ready = {"router_url": "http://127.0.0.1:1", "admin_url": "a", "api_key": "k", "models": ["m"], "clusters": [pod]}
    text = introduction(ready)
    snippet = text[text.index("from openai") : text.index("Models:")]
    compile(snippet, "snippet", "exec")
    assert "kill -9 11 12   # eu-1" in text
    for command in ("gir drain eu-1; .venv/bin/gir undrain eu-1", "gir canary start try --model m --to m --weight 20"):
        assert f".venv/bin/{command}" in text
