"""What scraping makes of engines that are slow, renamed, silent, restarted or without metrics."""

import asyncio

import pytest

from tests.support.agent_site import Site, engine

QUICK = {"interval_s": 0.05, "timeout_s": 0.1, "stale_periods": 6}


def scraped(site: Site, name: str, result: str = "ok") -> float:
    return site.agent._metrics.scrapes.child(name, result).value


@pytest.mark.slow
async def test_a_pod_with_slow_metrics_delays_no_other() -> None:
    async with Site([engine("slow"), engine("quick")], scrape=QUICK) as site:
        site.order("slow", "metrics", how="slow", delay_s=5.0)
        before = scraped(site, "quick")
        await site.until(lambda: site.rows()["slow"]["state"] == "stale")
        assert scraped(site, "quick") - before >= 3
        assert site.rows()["quick"]["state"] == "ready"
        status, headers, _ = await site.chat()
        assert (status, headers["x-gir-pod"]) == (200, "quick")


async def test_a_stale_pod_returns_by_itself_and_starts_slowly() -> None:
    async with Site([engine("a"), engine("b")], scrape={**QUICK, "ramp_s": 60.0}) as site:
        site.order("a", "metrics", how="status", status=500, name="sick")
        await site.until(lambda: site.rows()["a"]["state"] == "stale")
        site.engines["a"].relieve("sick")
        await site.until(lambda: site.rows()["a"]["state"] == "ready")
        assert site.rows()["a"]["ramp"] < 0.5


async def test_metrics_of_no_known_engine_are_a_visible_warning_and_service_goes_on() -> None:
    async with Site([engine("a")], scrape=QUICK) as site:
        site.order("a", "metrics", how="renamed")
        await site.until(lambda: site.rows()["a"]["dialect"] == "unknown")
        assert "signal_missing:dialect:a" in site.agent._fleet.warnings()
        assert (await site.chat())[0] == 200
        async with site.http.get(f"http://127.0.0.1:{site.agent.admin_port}/metrics") as answer:
            page = await answer.text()
        assert 'gir_agent_signal_missing{pod="a",signal="dialect"} 1.0' in page


async def test_old_vllm_and_sglang_pages_are_understood() -> None:
    async with Site([engine("old", dialect="vllm-old"), engine("sg", dialect="sglang")], scrape=QUICK) as site:
        await asyncio.gather(*(site.chat(f"q{n}") for n in range(6)))
        await site.until(lambda: all(row["kv_usage"] is not None for row in site.rows().values()))
        assert {name: row["dialect"] for name, row in site.rows().items()} == {"old": "vllm", "sg": "sglang"}
        assert site.agent._fleet.warnings() == []


async def test_an_engine_restart_is_seen_as_a_new_incarnation() -> None:
    async with Site([engine("a")], scrape=QUICK) as site:
        await site.chat("x" * 4_000)
        await site.until(lambda: site.rows()["a"]["prefix_blocks"] > 0)
        await site.until(lambda: (site.agent._fleet.pods()[0].signals.prompt_tokens_total or 0) > 0)  # type: ignore[union-attr]
        site.order("a", "restart", delay_s=0.05)
        await site.until(lambda: site.rows()["a"]["incarnation"] == 1)
        assert site.rows()["a"]["prefix_blocks"] == 0
        await site.until(lambda: site.rows()["a"]["state"] == "ready")
        assert (await site.chat())[0] == 200


async def test_a_page_beyond_the_cap_is_a_failed_scrape() -> None:
    async with Site([engine("a")], scrape={**QUICK, "page_bytes_max": 1_024}) as site:
        await site.until(lambda: scraped(site, "a", "failed") >= 3)
        assert (await site.chat())[0] == 200, "without any news the agent still serves"


async def test_a_pod_without_metrics_is_watched_by_its_health_path() -> None:
    async with Site([engine("a"), engine("b")], pods={"a": {"metrics": False}}, scrape=QUICK) as site:
        site.order("a", "unhealthy")
        await site.until(lambda: site.rows()["a"]["state"] == "stale")
        _, headers, _ = await site.chat()
        assert headers["x-gir-pod"] == "b"


async def test_when_every_metrics_page_is_gone_the_picker_degrades_and_goes_on() -> None:
    async with Site([engine("a"), engine("b")], scrape=QUICK) as site:
        await site.chat()
        for name in ("a", "b"):
            site.order(name, "metrics", how="missing")
        await site.until(lambda: site.rows()["a"]["mode"] == "in_flight")
        answers = await asyncio.gather(*(site.chat(f"q{n}") for n in range(10)))
        assert {status for status, _, _ in answers} == {200}
        assert "picker_degraded:in_flight:llama" in site.agent._fleet.warnings()
