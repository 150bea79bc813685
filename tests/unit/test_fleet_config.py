"""What the fleet writes, the products read."""

from pathlib import Path

import msgspec
import pytest

from chaos.engine.server import HostConfig
from chaos.members import Cluster, Router, overlay
from chaos.topology import ClusterShape, PodShape, Topology, demo
from tier1_agent.config import load

ROUTER = Router("router-1", (20_001, 20_002, 20_003), Path("unused"))


def started(shape: ClusterShape) -> Cluster:
    """A cluster whose engines have said where they listen."""
    cluster = Cluster(shape, (20_010, 20_011), "token-of-cluster", Path("unused"))
    cluster.pods = [
        {"name": f"{shape.name}-{n}", "url": f"http://127.0.0.1:{21_000 + n}", "model": shape.model}
        for n in range(1, len(shape.pods) + 1)
    ]
    return cluster


def test_the_agent_accepts_what_is_written_for_every_cluster_of_the_demo(tmp_path: Path) -> None:
    for shape in demo().clusters:
        path = tmp_path / f"{shape.name}.yaml"
        path.write_bytes(msgspec.yaml.encode(started(shape).agent_config([ROUTER])))
        config = load(path)
        assert (config.cluster, config.region, config.tier) == (shape.name, shape.region, shape.tier)
        assert config.routers == ("127.0.0.1:20003",)
        assert [pod.slots for pod in config.pods.static] == [pod.slots for pod in shape.pods]


def test_engines_take_any_port_first_and_their_old_one_after_a_restart() -> None:
    shape = ClusterShape(name="a", region="r", pods=(PodShape(adapters=("x",)), PodShape()))
    fresh = Cluster(shape, (1, 2), "t", Path("unused"))
    assert [pod["listen"] for pod in fresh.engines_config(0.5)["pods"]] == ["127.0.0.1:0", "127.0.0.1:0"]
    again = started(shape).engines_config(0.5)
    assert [pod["listen"] for pod in again["pods"]] == ["127.0.0.1:21001", "127.0.0.1:21002"]
    config = msgspec.convert(again, HostConfig)
    assert config.pods[0].adapters == ("x",)
    assert config.pods[0].time_scale == 0.5


def test_an_engine_may_serve_another_model_than_its_cluster() -> None:
    shape = ClusterShape(name="a", region="r", model="old", pods=(PodShape(), PodShape(model="new")))
    config = msgspec.convert(Cluster(shape, (1, 2), "t", Path("unused")).engines_config(0.5), HostConfig)
    assert [pod.model for pod in config.pods] == ["old", "new"]
    assert Topology(clusters=(shape,)).models == ["new", "old"]


def test_the_router_knows_keys_by_digest_and_agents_by_token() -> None:
    topology = demo()
    clusters = [started(shape) for shape in topology.clusters]
    config = ROUTER.config(topology, {"demo": "ab" * 32}, clusters)
    assert config["auth"]["api_keys"] == [{"id": "demo", "key_sha256": "ab" * 32, "tenant": "demo"}]
    assert [agent["cluster"] for agent in config["agents"]] == ["eu-reserved", "eu-burst", "us-reserved"]
    assert {agent["token"]["value"] for agent in config["agents"]} == {"token-of-cluster"}


def test_sections_are_laid_over_without_changing_either() -> None:
    base = {"a": {"x": 1, "y": 2}, "b": 1}
    extra = {"a": {"y": 3}, "c": {"z": 1}}
    assert overlay(base, extra) == {"a": {"x": 1, "y": 3}, "b": 1, "c": {"z": 1}}
    assert base == {"a": {"x": 1, "y": 2}, "b": 1}


def test_the_demo_is_what_it_promises() -> None:
    topology = demo()
    assert {cluster.region for cluster in topology.clusters} == {"eu-west", "us-east"}
    assert sorted(cluster.tier for cluster in topology.clusters) == ["on_demand", "reserved", "reserved"]
    assert len({pod.gpu for cluster in topology.clusters for pod in cluster.pods}) >= 3
    assert topology.models == ["llama-70b", "llama-70b-sql", "llama-70b-support"]


def test_any_cluster_of_the_demo_may_be_killed_without_a_model_being_gone() -> None:
    topology = demo()
    for killed in topology.clusters:
        others = [cluster for cluster in topology.clusters if cluster is not killed]
        left = {name for cluster in others for pod in cluster.pods for name in (cluster.model, *pod.adapters)}
        assert sorted(left) == topology.models, f"without {killed.name}"


def test_a_topology_file_with_an_unknown_key_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="colour"):
        msgspec.yaml.decode("clusters: []\ncolour: red\n", type=Topology)
