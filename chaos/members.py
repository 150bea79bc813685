"""The members of a local fleet, and the configuration each is started with."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from chaos.children import Child
from chaos.faults.tcp import TcpProxy
from chaos.topology import ClusterShape, Topology


class Router:
    """One router process."""

    def __init__(self, name: str, ports: tuple[int, int, int], config_path: Path) -> None:
        listen, admin, beats = ports
        self.name = name
        self.url = f"http://127.0.0.1:{listen}"
        self.admin_url = f"http://127.0.0.1:{admin}"
        self.beats = f"127.0.0.1:{beats}"
        self.config_path = config_path
        self.process: Child | None = None
        self.store_url = ""
        """Where it counts limits; empty: in its own process."""
        self.store_proxy: TcpProxy | None = None

    @property
    def log_path(self) -> Path:
        """Where it logs, through every restart."""
        return self.config_path.with_suffix(".log")

    @property
    def pids(self) -> list[int]:
        return [self.process.pid] if self.process is not None else []

    def config(self, topology: Topology, keys: Mapping[str, str], clusters: Iterable["Cluster"]) -> dict[str, Any]:
        """Its configuration file. `keys` maps key ids to the SHA-256 of their secrets."""
        config: dict[str, Any] = {
            "listen": self.url.removeprefix("http://"),
            "admin": {"listen": self.admin_url.removeprefix("http://"), "tokens": []},
            "beats": {"listen": self.beats},
            "auth": {
                "api_keys": [{"id": key.id, "key_sha256": keys[key.id], "tenant": key.tenant} for key in topology.keys]
            },
            "agents": [{"cluster": cluster.name, "token": {"value": cluster.token}} for cluster in clusters],
            "store": {"kind": "redis", "url": {"value": self.store_url}} if self.store_url else {"kind": "memory"},
            "policy": topology.policy,
        }
        if topology.routers > 1:
            config["name"] = self.name
        return overlay(config, topology.router)

    def describe(self) -> dict[str, Any]:
        """Its entry of the ready file."""
        return {"name": self.name, "url": self.url, "admin_url": self.admin_url, "pids": self.pids}


class Cluster:
    """One cluster: its agent, and one process that hosts its engines."""

    def __init__(self, shape: ClusterShape, ports: tuple[int, int], token: str, directory: Path) -> None:
        self.shape = shape
        self.name = shape.name
        self.token = token
        self.directory = directory
        self.agent_url = f"http://127.0.0.1:{ports[0]}"
        self.admin_url = f"http://127.0.0.1:{ports[1]}"
        self.advertise_url = self.agent_url
        """What routers dial: the agent, or a proxy before it."""
        self.beats_via: dict[str, str] = {}
        """Beat address of a router to the address of a proxy before it."""
        self.data_proxy: TcpProxy | None = None
        self.beat_proxies: list[TcpProxy] = []
        self.pods: list[dict[str, str]] = []
        """`name`, `url` and `model` of each engine, once they serve."""
        self.agent: Child | None = None
        self.engines: Child | None = None

    @property
    def processes(self) -> list[Child]:
        """Agent and engines, as far as they were started."""
        return [child for child in (self.agent, self.engines) if child is not None]

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self.processes]

    def engines_config(self, time_scale: float) -> dict[str, Any]:
        """Configuration of its engines; after a restart they take their old ports again."""
        pods = []
        for index, shape in enumerate(self.shape.pods):
            listen = self.pods[index]["url"].removeprefix("http://") if self.pods else "127.0.0.1:0"
            fixed = {"name": f"{self.name}-{index + 1}", "time_scale": time_scale, "listen": listen}
            pods.append({**fixed, **msgspec.to_builtins(shape), "model": shape.model or self.shape.model})
        return {"pods": pods}

    def agent_config(self, routers: Iterable[Router]) -> dict[str, Any]:
        """Configuration of its agent."""
        config: dict[str, Any] = {
            "cluster": self.name,
            "region": self.shape.region,
            "tier": self.shape.tier,
            "price_per_slot_hour": self.shape.price_per_slot_hour,
            "listen": self.agent_url.removeprefix("http://"),
            "advertise_url": self.advertise_url,
            "admin": {"listen": self.admin_url.removeprefix("http://")},
            "token": {"value": self.token},
            "routers": [self.beats_via.get(router.beats, router.beats) for router in routers],
            "pods": {
                "static": [
                    {
                        "name": pod["name"],
                        "url": pod["url"],
                        "model": pod["model"],
                        "slots": shape.slots,
                        "adapters_loadable": list(shape.adapters),
                    }
                    for pod, shape in zip(self.pods, self.shape.pods, strict=True)
                ]
            },
        }
        return overlay(config, self.shape.agent)

    def describe(self) -> dict[str, Any]:
        """Its entry of the ready file."""
        return {
            "name": self.name,
            "region": self.shape.region,
            "tier": self.shape.tier,
            "agent_url": self.agent_url,
            "admin_url": self.admin_url,
            "pids": self.pids,
            "pods": [pod["url"] for pod in self.pods],
        }


def overlay(base: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` laid over `base`, section by section; neither is changed."""
    merged = dict(base)
    for key, value in extra.items():
        below = merged.get(key)
        merged[key] = overlay(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged
