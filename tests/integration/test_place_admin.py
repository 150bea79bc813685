"""The admin API and the commands of placement, end to end on a real socket."""

import argparse
import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from prometheus_client.registry import CollectorRegistry

from gir.admin.canary import CanaryApi
from gir.admin.explain import ExplainApi, ExplainAsk
from gir.admit.limits import Limiter
from gir.cli import canary_cmd, explain_cmd
from gir.clock import ManualClock
from gir.model.cluster import ClusterStatus
from gir.model.policy import CanaryGuard, CanaryRule, CanaryTarget, LimitRule, ModelPolicy, RuleMatch, TenantPolicy
from gir.place import Placer, Rewriter
from gir.stores.memory import MemoryStore
from gir.telemetry.admin import READER, AdminAccess, AdminServer, AdminToken, Readiness, build_app, digest_of
from tests.support import limiting
from tests.support.orders import Desk, office
from tests.support.placing import NOW_S, cluster, plan, policy, pool, request, view

RULE = CanaryRule(
    name="next",
    matches=(RuleMatch(model="llama"),),
    targets=(CanaryTarget(model="llama", weight=90), CanaryTarget(model="llama-next", weight=10)),
    guard=CanaryGuard(),
)


@pytest.fixture
async def router() -> AsyncIterator[SimpleNamespace]:
    clock = ManualClock(monotonic_s=NOW_S)
    world = SimpleNamespace(
        placer=Placer(),
        rewriter=Rewriter(),
        clock=clock,
        policy=policy(rewrites=(RULE,), models=(ModelPolicy(name="llama", aliases=("gpt-4",)),)),
        view=view(
            cluster("cheap", rtt_s=0.1, load={"slots_free": 2}),
            cluster("dear", tier="on_demand", pools=[pool(), pool(model="llama-next")]),
            cluster("us", region="us", backoff_until_s=NOW_S + 9.0),
        ),
        events=[],
    )
    errors: list[BaseException] = []
    now: dict[str, Callable[[], Any]] = {"view": lambda: world.view, "policy": lambda: world.policy}
    app = build_app(
        registry=CollectorRegistry(),
        readiness=lambda: Readiness(True),
        access=AdminAccess(),
        on_error=lambda _, error: errors.append(error),
    )
    app.add_routes(ExplainApi(world.placer, world.rewriter, world.clock, **now).routes())
    desk = Desk(clock=world.clock, follow=lambda orders: world.rewriter.heed(orders.canaries, NOW_S, clock.wall_s()))
    canaries = CanaryApi(
        world.rewriter,
        desk,
        office(desk, world.clock),
        world.clock,
        router="r-1",
        **now,
        on_event=world.events.append,
    )
    app.add_routes(canaries.routes())
    world.canaries = canaries
    server = AdminServer(app)
    await server.start("127.0.0.1", 0)
    world.url = f"http://127.0.0.1:{server.port}"
    yield world
    await server.close()
    assert errors == []


async def command(module: Any, router: SimpleNamespace, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    parser.set_defaults(command="x")
    module.add_arguments(parser)
    return await asyncio.to_thread(module.run, parser.parse_args([*argv, "--admin-url", router.url]))


async def test_explain_tells_the_story_of_a_spill(router, capsys):
    assert await command(explain_cmd, router, "--model", "gpt-4", "--session", "s-1", "--draw", "0.99") == 0
    told = capsys.readouterr().out
    assert told.startswith("llama -> dear (spill: the cheaper tier's headroom is short")
    for part in (
        "canary    rule=next draw=",
        "> on_demand",
        "rtt",
        "queue",
        "prefill",
        "us  backoff: asked for less work",
    ):
        assert part in told


async def test_explain_reads_a_real_body_and_counts_nothing(router, capsys, tmp_path):
    body = tmp_path / "body.json"
    body.write_text(json.dumps({"model": "llama", "messages": [{"role": "user", "content": "x" * 8_000}]}))
    for _ in range(30):
        assert await command(explain_cmd, router, "--body", str(body), "--json") == 0
    answer = json.loads(capsys.readouterr().out.split("\n}\n")[0] + "\n}")
    assert answer["placement"]["ranked"][0]["terms"][2]["detail"].startswith("2")
    assert router.placer.loads.open("cheap") == router.placer.loads.open("dear") == 0
    assert len(router.placer.decisions) == 0
    assert router.rewriter.trial("next").tally == {}, "nor for the canary's figures"


@pytest.mark.parametrize(
    "ask",
    [
        {"prompt_tokens": 10**400},
        {"prompt_tokens": -1},
        {"output_tokens_max": 10**30},
        {"model": "x" * 257},
        {"model": "x\n\nranked"},
        {"model": "\x1b[31mx"},
    ],
)
async def test_explain_refuses_what_no_client_could_send(router, ask):
    body = json.dumps({"model": "llama"} | ask)
    url = f"{router.url}/admin/explain"
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as answer:
        assert answer.status == 400


async def test_explain_knows_what_the_policy_says_of_a_tenant(router, capsys):
    tenants = (TenantPolicy(id="acme", models=("llama",)), TenantPolicy(id="lab", trusted=True))
    router.policy = policy(rewrites=(RULE,), tenants=tenants)
    assert await command(explain_cmd, router, "--model", "llama-next", "--tenant", "acme") == 1
    assert "nobody (403): tenant 'acme' may not use model 'llama-next'" in capsys.readouterr().out
    assert await command(explain_cmd, router, "--model", "llama", "--tenant", "acme") == 0
    api = ExplainApi(
        router.placer, router.rewriter, router.clock, view=lambda: router.view, policy=lambda: router.policy
    )
    told = api.answer(ExplainAsk(model="llama", tenant="lab", headers={"x-gir-canary": "llama-next"}))
    assert told["placement"]["model"] == "llama-next"


async def test_explain_names_the_counters_that_would_decide(router):
    rules = [LimitRule(name="alias", model="gpt-4", requests_per_min=1), LimitRule(name="other", model="x", per=())]
    limiter = Limiter(rules, MemoryStore(router.clock), clock=router.clock)
    api = ExplainApi(
        router.placer,
        router.rewriter,
        router.clock,
        view=lambda: router.view,
        policy=lambda: router.policy,
        limits=limiter.explain,
    )
    ask = ExplainAsk(model="gpt-4", tenant="acme")
    assert api.answer(ask)["text"].endswith("\nlimits\n  alias:acme:requests  1 of 1 requests left, this asks for 1\n")
    asked = msgspec.structs.replace(limiting.request(1, tenant="acme"), model_asked="gpt-4")
    limiter.reserve_now(asked, router.clock.monotonic_s())
    answer = api.answer(ask)
    assert [(row["counter"], row["left"], row["room"]) for row in answer["limits"]] == [
        ("alias:acme:requests", 0, False)
    ]
    assert answer["text"].endswith("0 of 1 requests left, this asks for 1: refused\n")
    assert api.answer(ExplainAsk(model="llama", tenant="acme"))["limits"] == []


async def test_explain_ends_with_one_when_nobody_can_take_it(router, capsys):
    assert await command(explain_cmd, router, "--model", "llama", "--region", "us") == 1
    told = capsys.readouterr().out
    assert "nobody (503)" in told
    assert "earliest recovery in 9.0 s" in told
    assert "cheap  residency" in told
    assert await command(explain_cmd, router, "--model", "llama", "--region", "us", "--cluster", "cheap") == 1
    assert "nobody (403)" in capsys.readouterr().out
    assert await command(explain_cmd, router, "--model", "gone") == 1
    assert "no cluster has ever reported this model (404)" in capsys.readouterr().out


async def test_a_real_decision_and_its_retry_are_told_by_request_id(router, capsys):
    asked = request("req-7", prompt_tokens_estimate=4_000)
    first = plan(router.placer, router.view, asked, policy=router.policy)
    plan(router.placer, router.view, asked, policy=router.policy, tried=frozenset({first.ranked[0].cluster}))
    assert await command(explain_cmd, router, "req-7") == 0
    told = capsys.readouterr().out
    assert "attempt 1\n" in told
    assert "attempt 2\n" in told
    assert "tried: an attempt of this request was already made here" in told


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("req-unknown",), 1, "no decision for request 'req-unknown'"),
        ((), 2, "give --model or --body"),
        (("--model", "llama", "--draw", "1.5"), 1, "draw is 1.5; use a number in [0, 1)"),
        (("--body", "/nonexistent.json"), 2, "/nonexistent.json"),
        (("--model", "llama", "--header", "x"), 2, "write it as NAME=VALUE"),
        (("--model", "llama", "--trusted", "--header", "x-gir-canary=typo"), 1, "use one of llama, llama-next"),
    ],
)
async def test_wrong_questions_are_answered_with_the_fix(router, capsys, argv, code, said):
    assert await command(explain_cmd, router, *argv) == code
    assert said in capsys.readouterr().err


async def test_a_canary_is_started_promoted_and_aborted_by_command(router, capsys):
    assert await command(canary_cmd, router, "status") == 0
    assert "next  running" in capsys.readouterr().out
    assert await command(canary_cmd, router, "promote", "next") == 0
    assert "llama-next" in capsys.readouterr().out
    assert await command(canary_cmd, router, "abort", "next", "--reason", "bad German") == 0
    assert "aborted: bad German" in capsys.readouterr().out
    assert await command(canary_cmd, router, "status", "next") == 1
    assert await command(canary_cmd, router, "start", "next") == 0
    assert [event.action for event in router.events] == ["promote", "abort", "start"]
    assert {event.by for event in router.events} == {"local"}


async def test_a_target_without_a_live_cluster_is_pointed_out(router, capsys):
    assert await command(canary_cmd, router, "status", "next") == 0
    assert "no live cluster" not in capsys.readouterr().out
    lab = cluster("dear", pools=[pool(), pool(model="llama-next")], status=ClusterStatus.DEAD)
    router.view = view(cluster("cheap"), lab, version=2)
    assert await command(canary_cmd, router, "status", "next") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "no live cluster" in line]
    assert line.split()[:2] == ["canary", "llama-next"]


async def test_a_new_canary_is_launched_by_command_and_obeyed(router, capsys):
    launch = ("start", "try", "--model", "llama", "--to", "llama-next", "--weight", "100", "--plan", "0:0", "60:100")
    assert await command(canary_cmd, router, *launch) == 0
    assert "stage 1 of 2" in capsys.readouterr().out
    assert await command(explain_cmd, router, "--model", "llama") == 0
    assert "rule=try" in capsys.readouterr().out
    assert await command(canary_cmd, router, "start", "next", "--model", "llama", "--to", "llama-next") == 1
    assert "the policy has a rule called next" in capsys.readouterr().err
    assert await command(canary_cmd, router, "start", "bad", "--model", "llama", "--to", "nobody") == 1
    assert "targets[1].model is 'nobody', which no cluster serves" in capsys.readouterr().err


async def test_a_viewer_may_ask_where_a_request_would_go_and_steer_nothing(router):
    viewer = AdminToken(name="eyes", digest=digest_of("r-secret"), role=READER)
    app = build_app(
        registry=CollectorRegistry(),
        readiness=lambda: Readiness(True),
        access=AdminAccess([viewer]),
        on_error=lambda _, error: pytest.fail(str(error)),
    )
    now = {"view": lambda: router.view, "policy": lambda: router.policy}
    app.add_routes(ExplainApi(router.placer, router.rewriter, router.clock, **now).routes())
    app.add_routes(router.canaries.routes())
    server = AdminServer(app)
    await server.start("127.0.0.1", 0)
    url, headers = f"http://127.0.0.1:{server.port}", {"authorization": "Bearer r-secret"}
    try:
        async with aiohttp.ClientSession(headers=headers) as session:
            async with session.post(f"{url}/admin/explain", json={"model": "llama"}) as answer:
                assert answer.status == 200
                assert (await answer.json())["placement"]["ranked"]
            async with session.post(f"{url}/admin/canaries/next/promote") as answer:
                assert answer.status == 403
    finally:
        await server.close()


async def test_a_dry_run_is_launched_by_command_and_moves_nobody(router, capsys):
    launch = ("start", "try", "--model", "llama", "--to", "llama-next", "--weight", "100", "--dry-run")
    assert await command(canary_cmd, router, *launch) == 0
    assert "dry run" in capsys.readouterr().out
    assert await command(explain_cmd, router, "--model", "llama") == 0
    told = capsys.readouterr().out
    assert told.startswith("llama -> ")
    assert "-> llama-next (dry run)" in told


async def test_a_canary_is_launched_whatever_else_the_policy_asks_of_the_fleet(router, capsys):
    router.policy = policy(tenants=(TenantPolicy(id="t", regions=("mars",)),))
    assert await command(canary_cmd, router, "start", "try", "--model", "llama", "--to", "llama-next") == 0
    router.view = view()
    assert await command(canary_cmd, router, "start", "early", "--model", "llama", "--to", "not-yet") == 0


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("promote",), 2, "needs the name of a rule"),
        (("abort", "nope"), 1, "no rewrite rule is called 'nope'; there are: next"),
        (("status", "nope"), 1, "no rule is called nope"),
        (("start", "x", "--model", "llama"), 2, "needs both --model and --to"),
        (("start", "x", "--model", "a", "--to", "b", "--plan", "soon"), 2, "write SECONDS:PERCENT"),
    ],
)
async def test_wrong_canary_commands_name_the_fix(router, capsys, argv, code, said):
    assert await command(canary_cmd, router, *argv) == code
    assert said in capsys.readouterr().err


async def test_status_of_placement_shows_own_work_and_trust(router):
    import urllib.request

    router.placer.dispatched(request(), "cheap", NOW_S)
    plan(router.placer, router.view, policy=router.policy)

    def read() -> Any:
        with urllib.request.urlopen(router.url + "/admin/placement") as answer:
            return json.load(answer)

    status = await asyncio.to_thread(read)
    assert {each["cluster"]: each["in_flight"] for each in status["clusters"]} == {"cheap": 1, "dear": 0, "us": 0}
