"""The files under deploy/examples fit together: what one names, the other has."""

from pathlib import Path

from chaos.engine.server import load as load_engines
from gir.control.config import load as load_router
from tier1_agent.config import load as load_agent

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
ROUTER = load_router(EXAMPLES / "router.yaml")
AGENTS = [load_agent(path) for path in sorted(EXAMPLES.glob("agent-*.yaml"))]
ENGINES = load_engines(EXAMPLES / "engines.yaml")


def test_the_router_knows_every_agent_by_its_credential() -> None:
    tokens = {str(cluster): token for cluster, token in ROUTER.tokens().items()}
    assert tokens == {agent.cluster: agent.token.read("token") for agent in AGENTS if agent.token is not None}
    assert len(AGENTS) == 3
    assert all(agent.routers == (ROUTER.beats.listen,) for agent in AGENTS)


def test_every_pod_is_a_simulated_engine_that_can_serve_its_model() -> None:
    engines = {f"http://{pod.listen}": pod for pod in ENGINES.pods}
    for agent in AGENTS:
        for pod in agent.pods.static:
            engine = engines.pop(pod.url)
            assert (pod.model, pod.slots, pod.adapters_loadable) == (engine.model, engine.slots, engine.adapters)
    assert not engines, "an engine nobody lists"


def test_tiers_are_declared_and_no_address_is_used_twice() -> None:
    assert {agent.tier for agent in AGENTS} == {tier.name for tier in ROUTER.policy.tiers}
    listening = [ROUTER.listen, ROUTER.admin.listen, ROUTER.beats.listen, *(pod.listen for pod in ENGINES.pods)]
    listening += [address for agent in AGENTS for address in (agent.listen, agent.admin.listen)]
    assert len(listening) == len(set(listening))
