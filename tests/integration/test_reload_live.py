"""A running router takes up an edited file: bounds of the data port at once, the rest is named until a restart."""

import json
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from chaos.fleet import Fleet, call, get, write_config
from chaos.topology import demo

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]
PATIENCE_S = 10.0


def within(patience_s: float, check: Callable[[], bool]) -> bool:
    give_up_s = time.perf_counter() + patience_s
    while not check():
        if time.perf_counter() > give_up_s:
            return False
        time.sleep(0.1)
    return True


def test_bounds_follow_the_file_and_other_changes_are_named() -> None:
    with Fleet.start(demo(time_scale=0.05)) as fleet:
        router = fleet.routers[0]
        body = json.dumps(
            {"model": "llama-70b", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * 2_000}]}
        ).encode()

        def status() -> int:
            return call("POST", f"{fleet.router_url}/v1/chat/completions", fleet.api_key, body)[0]

        def config() -> dict[str, Any]:
            answer: dict[str, Any] = json.loads(get(f"{fleet.admin_url}/admin/config")[1])
            return answer

        assert status() == 200
        written = msgspec.yaml.decode(router.config_path.read_bytes())
        written["policy"]["forward"] = {"body_bytes_max": 1_000}
        written["telemetry"] = {"response_headers": False}
        write_config(router.config_path, written)
        assert within(PATIENCE_S, lambda: status() == 413)
        assert config()["restart_needed"] == ["telemetry.response_headers"]
        del written["policy"]["forward"], written["telemetry"]
        write_config(router.config_path, written)
        assert within(PATIENCE_S, lambda: status() == 200)
        assert config()["restart_needed"] == []
