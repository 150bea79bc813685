"""Limits and usage through the admin API and the commands that call it."""

import argparse
import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gir.account.ledger import UsageLedger
from gir.admin.limits import LimitsApi
from gir.admin.usage import UsageApi
from gir.admit.limits import Limiter
from gir.cli import limits_cmd
from gir.clock import SystemClock
from gir.model.ids import ModelId, TenantId
from gir.model.orders import Orders
from gir.model.outcome import Outcome
from gir.model.policy import LimitRule
from gir.model.request import Usage
from gir.stores.memory import MemoryStore
from gir.telemetry.admin import AdminAccess, AdminServer, Readiness, build_app
from tests.support.limiting import request
from tests.support.orders import Desk, office


class Spy:
    """A log that remembers."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


class Site:
    """An admin port with the two APIs."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        rules = [
            LimitRule(name="per-tenant", requests_per_min=10, tokens_per_min=5_000),
            LimitRule(name="big", tenant="team", model="llama", concurrency_max=3, per=()),
        ]
        self.limiter = Limiter(rules, MemoryStore(self.clock), clock=self.clock)
        self.desk = Desk(clock=self.clock, follow=self.follow)
        self.ledger = UsageLedger(since_wall_s=1.5)
        self.log = Spy()
        self.url = ""

    def follow(self, orders: Orders) -> None:
        """As a router does."""
        self.limiter.heed({name: order.numbers for name, order in orders.limits.items()})

    def command(self, *args: str) -> tuple[int, str, str]:
        """Run `gir limits`; exit code, output, complaints."""
        parser = argparse.ArgumentParser()
        limits_cmd.add_arguments(parser)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = limits_cmd.run(parser.parse_args([*args, "--admin-url", self.url]))
        return code, out.getvalue(), err.getvalue()

    async def gir_limits(self, *args: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(self.command, *args)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    app = build_app(
        registry=CollectorRegistry(),
        readiness=lambda: Readiness(ready=True, reasons=()),
        access=AdminAccess(),
        on_error=lambda what, error: pytest.fail(f"{what}: {error!r}"),
    )
    app.add_routes(LimitsApi(made.limiter, office(made.desk, made.clock), made.clock, made.log).routes())  # type: ignore[arg-type]
    app.add_routes(UsageApi(made.ledger).routes())
    server = AdminServer(app)
    port = await server.start("127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{port or server.port}"
    yield made
    await server.close()


async def test_rules_and_counters_are_shown(site: Site) -> None:
    code, out, _ = await site.gir_limits("show")
    assert code == 0
    assert "10 requests_per_min, 5000 tokens_per_min, per tenant" in out
    assert "3 concurrency_max, per everybody together, for tenant team, model llama" in out
    assert (await site.gir_limits("top"))[1].startswith("no counters")
    site.limiter.reserve_now(request(1), site.clock.monotonic_s())
    code, out, _ = await site.gir_limits("top", "--count", "1")
    assert code == 0
    assert out.count("\n") == 1
    assert "big:slots" in out
    answer = json.loads((await site.gir_limits("show", "--json"))[1])
    assert answer["store_up"] is True
    assert {row["counter"] for row in answer["counters"]} == {
        "per-tenant:team:requests",
        "per-tenant:team:tokens",
        "big:slots",
    }


async def test_an_operator_changes_a_number_and_takes_it_back(site: Site) -> None:
    code, out, _ = await site.gir_limits("set", "per-tenant", "--requests-per-min", "99")
    assert code == 0
    assert "99 requests_per_min" in out
    assert "changed by an operator" in (await site.gir_limits("show"))[1]
    assert site.limiter.rules[0].requests_per_min == 99
    assert site.log.lines[0]["change"] == {"requests_per_min": 99}
    code, out, _ = await site.gir_limits("reset", "per-tenant")
    assert code == 0
    assert "10 requests_per_min" in out
    assert site.limiter.overrides == {}


async def test_what_was_set_for_a_limit_that_is_gone_can_be_taken_back(site: Site) -> None:
    await site.gir_limits("set", "per-tenant", "--requests-per-min", "99")
    site.limiter.apply([])
    code, out, _ = await site.gir_limits("reset", "per-tenant")
    assert code == 0
    assert "the policy has no such limit now" in out
    assert site.limiter.overrides == {}
    assert (await site.gir_limits("reset", "per-tenant"))[0] == 1


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("set", "absent", "--requests-per-min", "5"), 1, "no limit is named 'absent'"),
        (("set", "per-tenant", "--requests-per-min", "0"), 1, "cannot be changed so"),
        (("set", "per-tenant"), 2, "needs a number"),
        (("set",), 2, "needs the name of a rule"),
    ],
)
async def test_what_cannot_be_meant_is_refused(site: Site, args: tuple[str, ...], code: int, message: str) -> None:
    found, _, complaint = await site.gir_limits(*args)
    assert found == code
    assert message in complaint


async def test_usage_as_json_and_csv(site: Site) -> None:
    for tenant, model in (("acme", "llama"), ("acme", "qwen"), ("beta", "llama")):
        account = site.ledger.open(TenantId(tenant), ModelId(model))
        account.settle(Outcome.COMPLETED, Usage(prompt_tokens=5, completion_tokens=2))
    answer = await asyncio.to_thread(fetch, f"{site.url}/admin/usage?by=tenant")
    rows = {row["tenant"]: (row["requests"], row["prompt_tokens"]) for row in json.loads(answer)["rows"]}
    assert rows == {"acme": (2, 10), "beta": (1, 5)}
    text = await asyncio.to_thread(fetch, f"{site.url}/admin/usage?format=csv&tenant=beta")
    assert text.splitlines()[1].startswith("beta,llama,1,1,0,")
    assert len(text.splitlines()) == 2


def fetch(url: str) -> str:
    import urllib.request

    with urllib.request.urlopen(url, timeout=5.0) as answer:
        return answer.read().decode()
