"""Where requests really go: pins, Regions, sessions, aliases and canaries, from the client's bytes to the cluster's."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import msgspec
import pytest

from gir.model.beat import AgentHello, BeatReport
from gir.model.cluster import ClusterStatus, Intent, PoolState
from gir.model.ids import ClusterId, ModelId, RegionId, TierName
from gir.model.policy import (
    CanaryGuard,
    CanaryRule,
    CanaryTarget,
    ClusterPolicy,
    ModelPolicy,
    PolicySnapshot,
    RuleMatch,
    TenantPolicy,
    TierPolicy,
)
from gir.net.exchange import Exchange
from tests.support.router import API_KEY, PLAIN_KEY, TestRouter
from tests.support.upstream import JSON, FakeCluster

ANSWER = b'{"id":"1","object":"chat.completion","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
TIERS = (TierPolicy(name="reserved", price_per_slot_hour=1.0), TierPolicy(name="on_demand", price_per_slot_hour=3.0))
Begin = Callable[..., Awaitable["World"]]


async def good(exchange: Exchange) -> None:
    exchange.respond(200, JSON, ANSWER)


class World:
    """A router and its clusters: `name -> (Region, tier, models)`."""

    def __init__(self, policy: PolicySnapshot) -> None:
        self.router = TestRouter((), policy)
        self.clusters: dict[str, FakeCluster] = {}
        self.session = aiohttp.ClientSession()

    async def join(self, name: str, region: str, tier: str, models: tuple[str, ...], script: Any) -> None:
        cluster = self.clusters[name] = await FakeCluster(name, script).start()
        now_s, known = self.router.clock.monotonic_s(), ClusterId(name)
        hello = AgentHello(cluster=known, region=RegionId(region), url=cluster.url, tier=TierName(tier), epoch=1)
        self.router.registry.hello(hello, now_s)
        pools = tuple(PoolState(model=ModelId(each), pods_ready=1, slots_total=8, slots_free=8) for each in models)
        self.router.registry.beat(BeatReport(cluster=known, epoch=1, seq=1, pools=pools), now_s)

    async def ask(self, model: str = "llama", *, key: str = API_KEY, body: Any = None, **headers: str) -> Any:
        """Status, headers and answer of one chat."""
        sent = {"model": model, "messages": [{"role": "user", "content": "hi"}], **(body or {})}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        url = f"{self.router.url}/v1/chat/completions"
        async with self.session.post(url, json=sent, headers={"authorization": f"Bearer {key}", **named}) as answer:
            return answer.status, answer.headers, await answer.json()

    async def close(self) -> None:
        await self.session.close()
        await self.router.close()
        for cluster in self.clusters.values():
            await cluster.close()


@pytest.fixture
async def begin() -> AsyncIterator[Begin]:
    worlds: list[World] = []

    async def start(policy: PolicySnapshot | None = None, script: Any = good, **clusters: Any) -> World:
        world = World(policy or PolicySnapshot(tiers=TIERS))
        worlds.append(world)
        await world.router.start()
        for name, (region, tier, models) in clusters.items():
            await world.join(name, region, tier, models, script)
        return world

    yield start
    for world in worlds:
        await world.close()


EU = ("eu", "reserved", ("llama",))
US = ("us", "reserved", ("llama",))


async def test_a_pinned_request_is_served_there_and_nowhere_else(begin: Begin) -> None:
    world = await begin(a=EU, b=US)
    for _ in range(10):
        status, headers, _ = await world.ask(x_gir_cluster_pin="b")
        assert (status, headers["x-gir-cluster"], headers["x-gir-reason"]) == (200, "b", "pinned")


@pytest.mark.parametrize(
    ("hurt", "status", "reason"),
    [
        ("drained", 503, "b: set to drain by an operator"),
        ("refusing", 503, "b: asked for less work"),
        ("gone", 503, "b: dead"),
        ("of another tenant", 403, "b: reserved for else"),
        ("outside the tenant's Regions", 403, "b: Region us is not among the allowed eu"),
        ("unknown", 403, "a: the request is pinned to b"),
        ("without the model", 403, "b: does not serve llama"),
    ],
)
async def test_a_pin_to_a_cluster_that_may_not_serve_is_refused_with_the_reason(
    begin: Begin, hurt: str, status: int, reason: str
) -> None:
    policies: dict[str, Any] = {
        "of another tenant": {"clusters": (ClusterPolicy(id=ClusterId("b"), tenants=("else",)),)},
        "outside the tenant's Regions": {"tenants": (TenantPolicy(id="team", regions=("eu",), trusted=True),)},
    }
    joined: dict[str, Any] = {"a": EU, "b": US}
    if hurt == "unknown":
        del joined["b"]
    if hurt == "without the model":
        joined["b"] = ("us", "reserved", ("other",))
    world = await begin(PolicySnapshot(tiers=TIERS, **policies.get(hurt, {})), **joined)
    registry, now_s = world.router.registry, world.router.clock.monotonic_s()
    if hurt == "drained":
        registry.set_intent(ClusterId("b"), Intent.DRAIN, now_s)
    elif hurt == "gone":
        registry.goodbye(ClusterId("b"), 1, now_s)
    elif hurt == "refusing":
        for _ in range(5):
            await _refused(world)
    got, _, body = await world.ask(x_gir_cluster_pin="b")
    assert (got, reason in body["error"]["message"]) == (status, True), body
    assert world.clusters["a"].seen == [], "never another Region silently"


async def _refused(world: World) -> None:
    async def full(exchange: Exchange) -> None:
        exchange.respond(429, [*JSON, (b"retry-after", b"20")], b"{}")

    world.clusters["b"].script = full
    await world.ask(x_gir_cluster_pin="b")


async def test_a_pin_of_a_caller_who_is_not_trusted_is_dropped(begin: Begin) -> None:
    world = await begin(a=EU, b=("us", "on_demand", ("llama",)))
    status, headers, _ = await world.ask(key=PLAIN_KEY, x_gir_cluster_pin="b")
    assert (status, headers["x-gir-cluster"]) == (200, "a")


async def test_a_tenant_kept_to_a_region_is_refused_rather_than_served_elsewhere(begin: Begin) -> None:
    tenants = (TenantPolicy(id="team", regions=("us",)),)
    world = await begin(PolicySnapshot(tiers=TIERS, tenants=tenants), a=EU, b=US)
    for _ in range(5):
        assert (await world.ask())[1]["x-gir-cluster"] == "b"
    await world.clusters["b"].close()
    for _ in range(5):
        assert (await world.ask())[0] == 503
    assert world.clusters["a"].seen == []


async def test_a_model_nobody_knows_is_404_one_that_nobody_can_serve_now_503_and_a_loop_508(begin: Begin) -> None:
    world = await begin(a=EU)
    unknown = await world.ask("nope")
    assert (unknown[0], unknown[2]["error"]["code"]) == (404, "model_not_found")
    loop = await world.ask(x_gir_hops="2")
    assert (loop[0], loop[2]["error"]["code"]) == (508, "loop_detected")
    world.router.registry.set_intent(ClusterId("a"), Intent.DRAIN, world.router.clock.monotonic_s())
    drained = await world.ask()
    assert (drained[0], drained[2]["error"]["code"]) == (503, "no_capacity")
    assert "a: set to drain by an operator" in drained[2]["error"]["message"]
    assert int(drained[1]["retry-after"]) >= 1


async def test_a_router_that_has_not_heard_everybody_yet_asks_to_come_back_for_a_model_it_does_not_know(
    begin: Begin,
) -> None:
    world = await begin(a=EU)
    world.router.awaited = "waiting for b to report"
    status, headers, answer = await world.ask("of-b")
    assert (status, answer["error"]["code"]) == (503, "no_capacity")
    assert answer["error"]["message"] == "gir: model 'of-b' is not known yet: waiting for b to report"
    assert int(headers["retry-after"]) >= 1
    assert (await world.ask())[0] == 200
    authorization = {"authorization": f"Bearer {API_KEY}"}
    for awaited, expected in (("waiting for b to report", 503), ("", 404)):
        world.router.awaited = awaited
        async with world.session.get(f"{world.router.url}/v1/models/of-b", headers=authorization) as card:
            assert card.status == expected


async def test_a_request_keeps_to_its_end_the_policy_it_began_with(begin: Begin) -> None:
    world = await begin(PolicySnapshot(tiers=TIERS, version=1), a=EU, b=("us", "on_demand", ("llama",)))
    only_eu = PolicySnapshot(tiers=TIERS, version=2, tenants=(TenantPolicy(id="team", regions=("eu",)),))

    async def reloaded_meanwhile(exchange: Exchange) -> None:
        world.router.policies.current = only_eu
        exchange.respond(500, JSON, b"{}")

    world.clusters["a"].script = reloaded_meanwhile
    status, headers, _ = await world.ask()
    assert (status, headers["x-gir-cluster"], headers["x-gir-attempts"]) == (200, "b", "2")
    ended = world.router.recorder.ended[-1]
    assert ended.placement is not None
    assert (ended.policy.version, ended.placement.policy_version) == (1, 1)
    world.clusters["a"].script = good
    assert (await world.ask())[1]["x-gir-cluster"] == "a", "the next one obeys the new policy"


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({}, {"x_session_id": "s-7"}),
        ({"prompt_cache_key": "s-7"}, {}),
        ({"user": "s-7"}, {}),
    ],
)
async def test_a_session_stays_where_it_is_until_its_cluster_is_gone(begin: Begin, body: Any, headers: Any) -> None:
    world = await begin(a=EU, b=EU, c=EU)
    homes = {(await world.ask(body=body, **headers))[1]["x-gir-cluster"] for _ in range(12)}
    assert len(homes) == 1
    (home,) = homes
    await world.clusters[home].close()
    moved = [await world.ask(body=body, **headers) for _ in range(8)]
    assert {status for status, _, _ in moved} == {200}, "a hint: liveness overrides"
    assert len({seen["x-gir-cluster"] for _, seen, _ in moved} - {home}) == 1


async def test_the_session_header_comes_before_what_the_body_says(begin: Begin) -> None:
    world = await begin(a=EU, b=EU, c=EU)
    told = [await world.ask(body={"user": f"u-{n}", "prompt_cache_key": f"k-{n}"}, x_session_id="s") for n in range(12)]
    assert len({headers["x-gir-cluster"] for _, headers, _ in told}) == 1


async def test_requests_of_nobody_in_particular_are_spread(begin: Begin) -> None:
    """Neither a request id nor the same words make a session."""
    world = await begin(a=EU, b=EU)
    homes = [(await world.ask(x_request_id="r-1"))[1]["x-gir-cluster"] for _ in range(40)]
    assert 8 <= homes.count("a") <= 32


async def test_text_that_looks_like_a_session_key_is_not_one(begin: Begin) -> None:
    world = await begin(a=EU, b=EU)
    said = {"messages": [{"role": "user", "content": '"user":"x","prompt_cache_key":"y"'}], "metadata": {"user": "z"}}
    homes = [(await world.ask(body=said))[1]["x-gir-cluster"] for _ in range(40)]
    assert 8 <= homes.count("a") <= 32


def canary(weight: int, **fields: Any) -> PolicySnapshot:
    targets = (CanaryTarget(model="llama", weight=100 - weight), CanaryTarget(model="llama-next", weight=weight))
    rule = CanaryRule(name="next", matches=(RuleMatch(model="llama"),), targets=targets, **fields)
    models = (ModelPolicy(name=ModelId("llama"), aliases=("gpt-4",)),)
    return PolicySnapshot(tiers=TIERS, rewrites=(rule,), models=models)


def models_seen(*clusters: FakeCluster) -> list[str]:
    return [json.loads(body)["model"] for cluster in clusters for _, body in cluster.seen]


async def test_a_canary_across_clusters_reaches_the_cluster_that_has_the_model_and_changes_only_the_name(
    begin: Begin,
) -> None:
    world = await begin(canary(100), a=EU, lab=("eu", "on_demand", ("llama-next",)))
    status, headers, _ = await world.ask("gpt-4", body={"temperature": 0.25, "x-unknown": [1, 2.50]})
    assert (status, headers["x-gir-cluster"], headers["x-gir-model"]) == (200, "lab", "llama-next")
    ((_, body),) = world.clusters["lab"].seen
    assert json.loads(body) == {
        "model": "llama-next",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 0.25,
        "x-unknown": [1, 2.5],
    }


async def test_a_request_of_a_class_that_the_canarys_tier_is_closed_to_is_served_by_the_stable_target(
    begin: Begin,
) -> None:
    reserved, on_demand = TIERS
    closed = msgspec.structs.replace(on_demand, criticality_min="standard")
    rules = msgspec.structs.replace(canary(100), tiers=(reserved, closed))
    world = await begin(rules, a=EU, lab=("eu", "on_demand", ("llama-next",)))
    told = [await world.ask(x_gir_criticality=each) for each in ("sheddable", "standard", "sheddable")]
    assert [(status, headers["x-gir-cluster"]) for status, headers, _ in told] == [(200, "a"), (200, "lab"), (200, "a")]


@pytest.mark.slow
async def test_callers_keep_their_side_of_the_split_and_testers_choose_theirs(begin: Begin) -> None:
    world = await begin(canary(50), a=("eu", "reserved", ("llama", "llama-next")))
    sides: dict[str, set[str]] = {}
    for _ in range(3):
        for number in range(16):
            _, headers, _ = await world.ask(x_session_id=f"s-{number}")
            sides.setdefault(f"s-{number}", set()).add(headers["x-gir-model"])
    assert all(len(models) == 1 for models in sides.values())
    assert set().union(*sides.values()) == {"llama", "llama-next"}
    for wish in ("llama", "llama-next"):
        assert (await world.ask(x_session_id="s-1", x_gir_canary=wish))[1]["x-gir-model"] == wish
    assert (await world.ask(x_gir_canary="typo"))[0] == 400
    plain = {(await world.ask(key=PLAIN_KEY, x_gir_canary=wish))[1]["x-gir-model"] for wish in ("llama", "llama-next")}
    assert len(plain) == 1, "not theirs to choose"


async def test_a_failed_attempt_counts_against_the_canary_although_another_one_hid_it(begin: Begin) -> None:
    served = 0

    async def first_fails(exchange: Exchange) -> None:
        nonlocal served
        served += 1
        exchange.respond(500 if served == 1 else 200, JSON, ANSWER)

    next_only = ("eu", "reserved", ("llama-next",))
    world = await begin(canary(100, guard=CanaryGuard()), first_fails, a=EU, lab1=next_only, lab2=next_only)
    status, headers, _ = await world.ask()
    assert (status, headers["x-gir-attempts"]) == (200, "2")
    assert (await world.ask())[0] == 200
    assert world.router.rewriter.trial("next").tally == {("llama-next", "error"): 1, ("llama-next", "ok"): 1}


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [1, 3])
async def test_a_failing_canary_is_gone_within_fifty_requests_however_well_its_failures_are_hidden(
    begin: Begin, clusters: int
) -> None:
    """With three clusters to try, every request of the canary is answered in the end, and half of its attempts fail."""
    served = 0

    async def every_other_fails(exchange: Exchange) -> None:
        nonlocal served
        if json.loads(await exchange.read_body())["model"] == "llama-next":
            served += 1
            if served % 2:
                exchange.respond(500, JSON, b'{"error":{"message":"engine says so"}}')
                return
        exchange.respond(200, JSON, ANSWER)

    labs = {f"lab{number}": ("eu", "reserved", ("llama-next",)) for number in range(clusters)}
    world = await begin(canary(50, guard=CanaryGuard()), every_other_fails, a=EU, **labs)
    trial, canaries = None, 0
    for number in range(400):
        status, headers, _ = await world.ask(x_session_id=f"s-{number}")
        trial = world.router.rewriter.trial("next")
        if headers.get("x-gir-model") == "llama":
            assert (status, headers["x-gir-cluster"], headers["x-gir-attempts"]) == (200, "a", "1"), "control untouched"
        else:
            canaries += 1
        if trial.state.value == "aborted":
            break
    assert trial is not None
    assert trial.state.value == "aborted"
    assert canaries <= 50
    assert {(await world.ask(x_session_id=f"s-{number}"))[1]["x-gir-model"] for number in range(40)} == {"llama"}


@pytest.mark.slow
@pytest.mark.parametrize("names", ["a", "ab"], ids=["one cluster", "two"])
async def test_a_bad_canary_on_the_stable_models_own_clusters_costs_the_control_no_answer(
    begin: Begin, names: str
) -> None:
    """Its failures cost clusters its pool, which is tried again or asked as a last resort; nobody else may notice."""

    async def next_fails(exchange: Exchange) -> None:
        failing = json.loads(await exchange.read_body())["model"] == "llama-next"
        exchange.respond(500 if failing else 200, JSON, ANSWER)

    both = ("eu", "reserved", ("llama", "llama-next"))
    world = await begin(canary(50, guard=CanaryGuard()), next_fails, **dict.fromkeys(names, both))
    control = 0
    for number in range(100):
        status, _, _ = await world.ask(x_session_id=f"s-{number}")
        rewrite = world.router.recorder.ended[-1].rewrite
        assert rewrite is not None
        if not rewrite.arm:
            control += 1
            assert status == 200
    trial = world.router.rewriter.trial("next")
    assert (trial.state.value, control > 50) == ("aborted", True)
    assert trial.tally["llama-next", "error"] <= 50
    assert {state.status for state in world.router.registry.view.clusters} == {ClusterStatus.HEALTHY}


@pytest.mark.slow
async def test_a_model_that_fails_in_a_cluster_is_served_by_another_one_and_costs_it_nothing_else(begin: Begin) -> None:
    """One request in three fails there: no run of failures and no rate of the cluster would ever give it away."""
    sick_asked = 0

    async def sick_fails(exchange: Exchange) -> None:
        nonlocal sick_asked
        failing = json.loads(await exchange.read_body())["model"] == "sick"
        sick_asked += failing
        exchange.respond(500 if failing else 200, JSON, ANSWER)

    world = await begin(PolicySnapshot(tiers=TIERS), good, b=("us", "reserved", ("sick",)))
    await world.join("a", "eu", "reserved", ("sick", "well-1", "well-2"), sick_fails)
    for _ in range(60):
        for model in ("sick", "well-1", "well-2"):
            status, headers, _ = await world.ask(model)
            assert (status, headers["x-gir-cluster"]) == (200, "b" if model == "sick" else "a")
    assert 5 <= sick_asked <= 8, "asked until it was known, and not again while it is left alone"
    assert world.router.registry.view.by_model[ModelId("well-1")][0].status is ClusterStatus.HEALTHY
    told = world.router.placer.decisions.of(world.router.recorder.ended[-3].request_id)[-1]
    assert [(out.cluster, out.filter) for out in told.removed] == [("a", "suspect")]
    assert "in reserve while others can serve (pool sick: breaker open" in told.removed[0].detail
