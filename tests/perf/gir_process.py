"""GIR under test: `gir serve` with two fake clusters, every Tier 2 feature on, pinned to the router's core.

The clusters are one process of `tests.perf.fake_agent` on the load's core that sends beats and nothing else; their data
paths are the mock engines, so that the router alone stands between client and engine.
"""

import asyncio
import contextlib
import hashlib
import json
import pathlib
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tests.perf import machine, peers

AGENT_TOKEN = "bench-agent-token"


def config(listen: int, admin: int, beats: int, clusters: Sequence[str]) -> dict[str, Any]:
    """A router with keys, limits and flow control that never say no, so that their cost is in the figure."""
    return {
        "listen": f"127.0.0.1:{listen}",
        "admin": {"listen": f"127.0.0.1:{admin}"},
        "beats": {"listen": f"127.0.0.1:{beats}"},
        "auth": {
            "api_keys": [
                {"id": "bench", "key_sha256": hashlib.sha256(peers.API_KEY.encode()).hexdigest(), "tenant": "bench"}
            ]
        },
        "agents": [{"cluster": name, "token": {"value": f"{AGENT_TOKEN}-{name}"}} for name in clusters],
        # Peers log nothing of single requests here, so neither does GIR.
        "telemetry": {"log_level": "warning", "access_log": False},
        "policy": {
            "tiers": [{"name": "reserved", "price_per_slot_hour": 1.0}],
            "limits": [
                {"name": "bench", "requests_per_min": 100_000_000, "tokens_per_min": 100_000_000_000},
                {"name": "open", "per": ["key"], "concurrency_max": 1_000_000},
            ],
        },
    }


@contextlib.asynccontextmanager
async def gir(engines: Sequence[int], *, core: int = machine.ROUTER_CORE) -> AsyncIterator[peers.Running]:
    """Run `gir serve` in front of one fake cluster for each of `engines`.

    Raises PeerMissingError when it does not come up.
    """
    command = pathlib.Path(sysconfig.get_path("scripts")) / "gir"
    listen, admin, beats = machine.free_port(), machine.free_port(), machine.free_port()
    clusters = {f"bench-{index}": f"http://127.0.0.1:{port}" for index, port in enumerate(engines)}
    with tempfile.TemporaryDirectory(prefix="gir-bench-") as scratch:
        file = pathlib.Path(scratch) / "router.yaml"
        # JSON is YAML.
        file.write_text(json.dumps(config(listen, admin, beats, list(clusters))))
        agents = [sys.executable, "-m", "tests.perf.fake_agent", "--router", f"127.0.0.1:{beats}"]
        for name, url in clusters.items():
            agents += ["--cluster", name, url, f"{AGENT_TOKEN}-{name}"]
        router = peers.process([str(command), "serve", "-c", str(file)], core=core, log=pathlib.Path(scratch) / "gir")
        fleet = peers.process(agents, core=machine.LOAD_CORE, log=pathlib.Path(scratch) / "agents")
        async with fleet, router as started:
            await peers.answers(listen, "gir serve", started)
            await asyncio.sleep(1.0)
            yield peers.Running("gir", listen, tuple(machine.family(started.pid)))
