"""A whole fleet as real processes on loopback, from one `Topology`.

    with Fleet.start(topology.demo()) as fleet:
        fleet.kill_cluster("eu-reserved")

Each cluster is two processes: its agent, and one that hosts its simulated engines. Start from the main thread (see
`children.spawn`). Whatever happens, `stop` leaves no process and no file behind.
"""

import contextlib
import hashlib
import http.client
import json
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec

from chaos import children
from chaos.backing import RedisServers
from chaos.children import Child, ChildError
from chaos.faults import wallclock
from chaos.faults.proxies import ProxyHost
from chaos.faults.wallclock import WallClock
from chaos.issuer import Issuer
from chaos.members import Cluster, Router, overlay
from chaos.ports import PortLeases
from chaos.scratch import Scratch, sweep
from chaos.topology import Topology

READY_S = 30.0
"""Patience with a start; an idle machine needs about three seconds."""


class Fleet:
    """A running fleet. Make one with `Fleet.start`."""

    def __init__(self, topology: Topology, scratch: Scratch) -> None:
        self.topology = topology
        self._scratch = scratch
        self.directory = scratch.directory
        self.keys = {key.id: secrets.token_hex(16) for key in topology.keys}
        """Secret of each API key."""
        self.routers: list[Router] = []
        self.clusters: dict[str, Cluster] = {}
        self.proxies: ProxyHost | None = None
        """Where drills poison connections, for clusters and stores that are `proxied`."""
        self.phantoms = {f"phantom-{number}": secrets.token_hex(16) for number in range(1, topology.phantoms + 1)}
        """Credential of each agent that a drill plays."""
        self.store: RedisServers | None = None
        self.issuer: Issuer | None = None
        self._leases = PortLeases()
        self._stopped = False
        self.wall_clocks: dict[str, WallClock] = {}
        """Of each router and agent, by the name of its process, where the topology wants them adjustable."""

    @classmethod
    def start(cls, topology: Topology, *, within_s: float = READY_S) -> Self:
        """Start everything and wait until every router serves every model.

        Raises ChildError with the log of whoever failed; nothing is left running then.
        """
        _ = sweep()
        fleet = cls(topology, Scratch())
        try:
            fleet._launch(within_s)
        except BaseException:
            fleet.stop()
            raise
        return fleet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def router_url(self) -> str:
        """Where clients connect: the first router."""
        return self.routers[0].url

    @property
    def admin_url(self) -> str:
        """Admin address of the first router."""
        return self.routers[0].admin_url

    @property
    def api_key(self) -> str:
        """Secret of the first key."""
        return next(iter(self.keys.values()))

    @property
    def processes(self) -> list[Child]:
        """Every child, routers first."""
        routers = [router.process for router in self.routers if router.process is not None]
        stores = self.store.processes if self.store is not None else []
        return routers + [child for cluster in self.clusters.values() for child in cluster.processes] + stores

    def describe(self) -> dict[str, Any]:
        """The ready file: addresses, key, clusters with their processes, models."""
        return {
            "router_url": self.router_url,
            "admin_url": self.admin_url,
            "api_key": self.api_key,
            "routers": [router.describe() for router in self.routers],
            "clusters": [cluster.describe() for cluster in self.clusters.values()],
            "models": self.topology.models,
        }

    def cluster(self, name: str) -> Cluster:
        """A cluster by name; KeyError lists the names there are."""
        found = self.clusters.get(name)
        if found is None:
            raise KeyError(f"no cluster is called {name!r}; there are {', '.join(self.clusters)}")
        return found

    # Faults at the level of processes.

    def kill_cluster(self, name: str) -> None:
        """SIGKILL every process of a cluster."""
        children.kill(self.cluster(name).processes)

    def pause_cluster(self, name: str) -> None:
        """SIGSTOP every process of a cluster."""
        for child in self.cluster(name).processes:
            child.signal(signal.SIGSTOP)

    def resume_cluster(self, name: str) -> None:
        """SIGCONT every process of a cluster."""
        for child in self.cluster(name).processes:
            child.signal(signal.SIGCONT)

    def start_cluster(self, name: str) -> None:
        """Start what does not run of a cluster, on its old ports; returns at once."""
        cluster = self.cluster(name)
        if cluster.engines is None or not cluster.engines.alive:
            self._spawn_engines(cluster)
        if cluster.agent is None or not cluster.agent.alive:
            self._spawn_agent(cluster)

    def start_routers(self) -> None:
        """Start every router that does not run, on its old ports; returns at once."""
        for router in self.routers:
            if router.process is None or not router.process.alive:
                self._spawn_router(router)

    def reload(self, policy: Mapping[str, Any]) -> None:
        """Lay sections over the policy of every router that runs; they take it over within their next second or so."""
        for router in self.routers:
            config = self._router_config(router)
            fresh = router.config_path.with_suffix(".new")
            write_config(fresh, config | {"policy": overlay(config["policy"], policy)})
            _ = fresh.replace(router.config_path)

    def stop(self, *, grace_s: float = 1.5) -> None:
        """End every process and remove every file. Safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        try:
            children.stop(self.processes, grace_s=grace_s)
        finally:
            children.kill(self.processes)
            if self.proxies is not None:
                self.proxies.close()
            if self.issuer is not None:
                self.issuer.stop()
            self._leases.close()
            self._scratch.close()

    def check_alive(self) -> None:
        """Raise ChildError when a process that should run has ended."""
        for child in self.processes:
            if not child.alive:
                raise child.trouble("ended unexpectedly")

    # Starting.

    def _launch(self, within_s: float) -> None:
        for number in range(1, self.topology.routers + 1):
            name = f"router-{number}"
            ports = (self._leases.take(), self._leases.take(), self._leases.take())
            self.routers.append(Router(name, ports, self.directory / f"{name}.yaml"))
        for shape in self.topology.clusters:
            directory = self.directory / shape.name
            directory.mkdir()
            token = secrets.token_hex(16)
            self.clusters[shape.name] = Cluster(shape, (self._leases.take(), self._leases.take()), token, directory)
        clusters = list(self.clusters.values())
        self._start_neighbours(within_s)
        self._open_proxies([cluster for cluster in clusters if cluster.shape.proxied])
        self._make_clocks()
        for router in self.routers:
            self._spawn_router(router)
        for cluster in clusters:
            self._spawn_engines(cluster)
        for cluster in clusters:
            self._await_engines(cluster, within_s)
            self._spawn_agent(cluster)
        for cluster in clusters:
            self._await_agent(cluster, within_s)
        for router in self.routers:
            self._await_router(router, within_s)

    def _start_neighbours(self, within_s: float) -> None:
        """What routers depend on: the store of the limits, the issuer of the tokens."""
        if self.topology.issuer:
            self.issuer = Issuer(*self.topology.issuer)
            self.issuer.start()
        shape = self.topology.store
        if shape.kind == "memory":
            return
        self.store = RedisServers(shape, self.directory / "store", self._leases)
        self.store.start(within_s)
        if shape.proxied:
            self.proxies = ProxyHost()
        for number, router in enumerate(self.routers):
            router.store_url = self.store.url
            if self.proxies is not None and number < shape.proxied:
                router.store_proxy = self.proxies.open(self.store.primary_port)
                router.store_url = f"redis://127.0.0.1:{router.store_proxy.port}"

    def _open_proxies(self, clusters: Sequence[Cluster]) -> None:
        if clusters and self.proxies is None:
            self.proxies = ProxyHost()
        for cluster in clusters:
            assert self.proxies is not None
            cluster.data_proxy = self.proxies.open(port_of(cluster.agent_url))
            cluster.advertise_url = f"http://127.0.0.1:{cluster.data_proxy.port}"
            for router in self.routers:
                proxy = self.proxies.open(port_of(router.beats))
                cluster.beat_proxies.append(proxy)
                cluster.beats_via[router.beats] = f"127.0.0.1:{proxy.port}"

    def _make_clocks(self) -> None:
        if self.topology.clocks_adjustable:
            library = wallclock.build(self.directory)
            names = [router.name for router in self.routers] + [f"{name} agent" for name in self.clusters]
            self.wall_clocks = {name: WallClock(library, self.directory / f"{name}.clock") for name in names}

    def _spawn(self, name: str, command: Sequence[str], log: Path) -> Child:
        """A process whose wall clock may be adjustable."""
        clock = self.wall_clocks.get(name)
        return children.spawn(name, command, log, env=clock.env if clock is not None else None)

    def _spawn_router(self, router: Router) -> None:
        write_config(router.config_path, self._router_config(router))
        command = children.python("-m", "gir.cli.main", "serve", "-c", str(router.config_path))
        router.process = self._spawn(router.name, command, router.log_path)

    def _router_config(self, router: Router) -> dict[str, Any]:
        digests = {id_: hashlib.sha256(secret.encode()).hexdigest() for id_, secret in self.keys.items()}
        config = router.config(self.topology, digests, self.clusters.values())
        config["agents"] += [{"cluster": name, "token": {"value": token}} for name, token in self.phantoms.items()]
        if self.issuer is not None:
            config["auth"]["jwt"] = [self.issuer.settings() | self.topology.issuer_settings]
        return config

    def _spawn_engines(self, cluster: Cluster) -> None:
        ready, config = cluster.directory / "engines.ready", cluster.directory / "engines.yaml"
        ready.unlink(missing_ok=True)
        write_config(config, cluster.engines_config(self.topology.time_scale))
        command = children.python("-m", "chaos.cli", "engine", "-c", str(config), "--ready-file", str(ready))
        cluster.engines = children.spawn(f"{cluster.name} engines", command, cluster.directory / "engines.log")

    def _spawn_agent(self, cluster: Cluster) -> None:
        config = cluster.directory / "agent.yaml"
        write_config(config, cluster.agent_config(self.routers))
        command = children.python("-m", "tier1_agent.cli", "serve", "-c", str(config))
        cluster.agent = self._spawn(f"{cluster.name} agent", command, cluster.directory / "agent.log")

    def _await_engines(self, cluster: Cluster, within_s: float) -> None:
        ready = cluster.directory / "engines.ready"
        children.wait_ready(cluster.engines, ready.exists, "did not start its engines", within_s)
        cluster.pods = json.loads(ready.read_bytes())["pods"]

    def _await_agent(self, cluster: Cluster, within_s: float) -> None:
        url = f"{cluster.agent_url}/healthz"
        children.wait_ready(cluster.agent, lambda: get(url)[0] == 200, f"did not answer 200 on {url}", within_s)

    def _await_router(self, router: Router, within_s: float) -> None:
        expected = set(self.topology.models)
        wish = f"did not list {', '.join(sorted(expected))}"
        children.wait_ready(router.process, lambda: expected <= self._models_of(router), wish, within_s)
        clusters = set(self.clusters)
        wish = f"did not report {', '.join(sorted(clusters))} as live"
        children.wait_ready(router.process, lambda: clusters <= live_clusters(router.admin_url), wish, within_s)

    def _models_of(self, router: Router) -> set[str]:
        status, body = get(f"{router.url}/v1/models", self.api_key)
        return {card["id"] for card in json.loads(body)["data"]} if status == 200 else set()


def port_of(address: str) -> int:
    """Port of `host:port` or of a URL without a path."""
    return int(address.rpartition(":")[2])


def live_clusters(admin_url: str) -> set[str]:
    """Clusters that a router would place on now."""
    status, body = get(f"{admin_url}/admin/clusters")
    if status != 200:
        return set()
    rows = json.loads(body)["clusters"]
    return {
        row["cluster"]
        for row in rows
        if row["status"] in ("healthy", "ramping") and not row["backpressure"]["retry_in_s"]
    }


def write_config(path: Path, config: dict[str, Any]) -> None:
    """Write a YAML file that only this user can read (it holds credentials)."""
    path.touch(mode=0o600)
    path.write_bytes(msgspec.yaml.encode(config))


def get(url: str, key: str = "") -> tuple[int, bytes]:
    """One GET; status 0 when nobody answers."""
    return call("GET", url, key)


def call(method: str, url: str, key: str = "", body: bytes | None = None) -> tuple[int, bytes]:
    """One request; status 0 when nobody answers within a second."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=1.0)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with contextlib.closing(connection):
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""


__all__ = ["ChildError", "Fleet", "get", "live_clusters"]
