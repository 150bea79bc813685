"""A router's configuration is checked as a whole: what contradicts itself or could not take effect is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gir.control.config import RouterConfig, from_text
from gir.control.validate import examine
from gir.settings import ConfigError

KEY = {"id": "demo", "key_sha256": "a" * 64, "tenant": "demo"}


def text(**sections: Any) -> str:
    """A good file with `sections` put over it."""
    good = {
        "auth": {"api_keys": [KEY]},
        "agents": [{"cluster": "eu-1", "token": {"value": "token-eu"}}],
    }
    return json.dumps({**good, **sections}, indent=1)  # JSON is YAML


def taken(base: Path = Path("/"), **sections: Any) -> RouterConfig:
    return from_text(text(**sections), source="r.yaml", base=base)


def complaints(**sections: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        taken(**sections)
    return str(caught.value)


TIER = {"name": "reserved", "price_per_slot_hour": 1}
LIMIT = {"name": "l", "requests_per_min": 5}
JWT = {"issuer": "i", "audiences": ["a"], "jwks_url": "https://issuer.example/keys"}


def test_a_good_file_is_taken() -> None:
    config = taken(policy={"tiers": [TIER], "limits": [LIMIT]})
    assert config.tokens() == {"eu-1": "token-eu"}
    assert len(config.policy.digest) == 12


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"listen": "8080"}, "listen is '8080': write host:port"),
        (
            {"beats": {"listen": "127.0.0.1:9090"}},
            "beats.listen is 127.0.0.1:9090: port 9090 is already used by admin.listen",
        ),
        ({"admin": {"listen": "0.0.0.0:9090"}}, "admin.listen is 0.0.0.0:9090 and admin.tokens is empty"),
        ({"workers": 2, "listen": "127.0.0.1:0"}, "workers is 2 and listen is 127.0.0.1:0"),
        ({"beats": {"peers": ["nowhere"]}}, "beats.peers[0] is 'nowhere'"),
        ({"tls": {"cert": "c.pem", "key": "k.pem"}}, "tls.cert is /c.pem: no such file"),
        ({"cluster_tls": {"cert": "c.pem"}}, "cluster_tls: cert and key go together"),
        ({"auth": {}}, "auth: there is no api_keys, api_keys_file or jwt, so nobody could call"),
        ({"auth": {"insecure_no_auth": True, "api_keys": [KEY]}}, "auth.insecure_no_auth is true, so keys"),
        ({"auth": {"api_keys": [KEY, KEY]}}, "auth.api_keys[1].id is 'demo', which is listed twice"),
        ({"auth": {"jwt": [{**JWT, "jwks_file": "f"}]}}, "auth.jwt[0]: give exactly one of jwks_url and jwks_file"),
        ({"auth": {"jwt": [{**JWT, "jwks_url": "http://issuer.example"}]}}, "http"),
        (
            {"agents": [{"cluster": name, "token": {"value": "same"}} for name in ("a", "b")]},
            "agents[1].token is also that of cluster a",
        ),
        (
            {"agents": [{"cluster": "a", "token": {"value": value}} for value in ("x", "y")]},
            "agents[1].cluster is 'a', which is listed twice",
        ),
        ({"agents": [{"cluster": "a", "token": {"env": "GIR_ABSENT"}}]}, "agents[0].token: the environment variable"),
        ({"store": {"kind": "redis"}}, "store.url is missing"),
        ({"store": {"url": {"value": "redis://h"}}}, "store.url is given, but store.kind is memory"),
        ({"store": {"kind": "redis", "url": {"value": "http://h"}}}, "store.url has the scheme 'http'"),
        ({"telemetry": {"otlp_endpoint": "collector:4318"}}, "telemetry.otlp_endpoint is collector:4318"),
        ({"telemetry": {"sample_share": 0.5}}, "telemetry.sample_share is set, but otlp_endpoint is not"),
        ({"policy": {"version": 3}}, "policy.version is 3: version and digest are set by the router"),
        (
            {"policy": {"tiers": [{**TIER, "criticality_min": "high"}]}},
            "policy.tiers[0].criticality_min is 'high'",
        ),
        ({"policy": {"tiers": [{"name": "reserved"}]}}, "policy.tiers[0].price_per_slot_hour is missing"),
        ({"policy": {"tiers": [TIER, TIER]}}, "policy.tiers[1].name is 'reserved', which is listed twice"),
        ({"policy": {"tiers": [{**TIER, "return_at": 0.1}]}}, "policy.tiers[0].return_at is 0.1"),
        ({"policy": {"clusters": [{"id": "a", "intent": "sleep"}]}}, "policy.clusters[0].intent is 'sleep': use serve"),
        ({"policy": {"clusters": [{"id": "a", "tier": "gold"}]}}, "policy.clusters[0].tier is 'gold'"),
        (
            {"policy": {"clusters": [{"id": "a", "tenants": ["acme"]}]}},
            "policy.clusters[0].tenants is 'acme', which is no",
        ),
        (
            {"policy": {"tenants": [{"id": "demo", "criticality_max": "standard", "criticality_default": "critical"}]}},
            "policy.tenants[0].criticality_default is critical, above its criticality_max standard",
        ),
        (
            {"policy": {"tenants": [{"id": "acme"}]}},
            "auth.api_keys[0].tenant is 'demo', which is no tenant; known: acme",
        ),
        ({"policy": {"tenants": [{"id": "demo", "regions": []}]}}, "policy.tenants[0].regions is empty"),
        ({"policy": {"models": [{"name": "a", "aliases": ["a"]}]}}, "policy.models[0].aliases[0] is 'a'"),
        (
            {"policy": {"models": [{"name": "a", "aliases": ["b"]}, {"name": "b", "aliases": ["a"]}]}},
            "policy.models[0].aliases[0] is 'b'",
        ),
        (
            {
                "policy": {
                    "rewrites": [
                        {"name": "r", "matches": [{}], "targets": [{"model": "a", "weight": 1}, {"model": "b"}]}
                    ]
                }
            },
            "policy.rewrites[0].targets[1].weight is missing while others have one",
        ),
        (
            {"policy": {"rewrites": [{"name": "r", "matches": [{}], "targets": [{"model": "a"}, {"model": "a"}]}]}},
            "policy.rewrites[0].targets[1].model is 'a', which is listed twice",
        ),
        ({"policy": {"health": {"dead_after_s": 60}}}, "which breaks failover_bound_s 35s"),
        ({"policy": {"limits": [{"name": "l"}]}}, "policy.limits[0] (l) limits nothing"),
        ({"policy": {"limits": [LIMIT, LIMIT]}}, "policy.limits[1].name is 'l', which is used twice"),
        (
            {"policy": {"limits": [{**LIMIT, "tenant": "acme"}]}},
            "policy.limits[0].tenant is 'acme', which is no tenant",
        ),
        ({"policy": {"limits": [{**LIMIT, "key": "k9"}]}}, "policy.limits[0].key is 'k9', which is no id"),
        (
            {"policy": {"limits": [{**LIMIT, "region": "eu"}]}},
            "policy.limits[0] (l) is by Region, but this router has none",
        ),
        (
            {"workers": 2, "policy": {"limits": [LIMIT]}},
            "policy.limits has 1 rules with 2 workers and store.kind memory",
        ),
        ({"policy": {"forward": {"total_s": 9_999}}}, "policy.forward.total_s is 9999, above deadline_client_max_s"),
        (
            {"policy": {"forward": {"hedge_after_s": 200}}},
            "policy.forward.hedge_after_s is 200, not before first_token_s",
        ),
        (
            {"policy": {"forward": {"hedge_after_s": 2, "attempts_max": 1}}},
            "policy.forward.attempts_max is 1, which leaves no second attempt",
        ),
        (
            {"policy": {"flow": {"bodies_bytes_max": 1_000}}},
            "policy.flow.bodies_bytes_max is 1000, below forward.body_bytes_max 33554432",
        ),
        ({"policy": {"flow": {"critical_reserve": 0.9, "sheddable_headroom": 0.2}}}, "take more than all slots"),
        (
            {"policy": {"flow": {"queue_max": 9, "in_flight_max": 5}}},
            "policy.flow.queue_max is 9, above in_flight_max 5",
        ),
    ],
)
def test_what_contradicts_itself_or_cannot_take_effect_is_refused(sections: dict[str, Any], words: str) -> None:
    told = complaints(**sections)
    assert words in told
    for line in told.splitlines():
        placed = re.fullmatch(r"r\.yaml:(\d+): ([a-z_]+)(.*)", line)
        assert placed, f"names no line or field: {line}"
        assert re.search(r"; |: | = ", placed[3]), f"shows no way out: {line}"
        assert f'"{placed[2]}"' in text(**sections) or placed[2] in ("auth", "store", "listen")


def test_every_fault_is_told_at_once() -> None:
    told = complaints(listen="x", admin={"listen": "y"}, policy={"forward": {"total_s": 9_999}}).splitlines()
    assert len(told) == 3
    assert [line.split(": ")[0] for line in told] == ["r.yaml:19", "r.yaml:21", "r.yaml:25"]


def test_faults_of_shape_are_told_all_at_once_and_in_the_order_of_the_file() -> None:
    told = complaints(
        listne="x", workers=0, policy={"tiers": [{"name": "a"}, {**TIER, "spill_at": "low"}], "models": {"name": "m"}}
    )
    assert told.splitlines() == [
        "r.yaml:19: listne is no known key; did you mean listen?",
        "r.yaml:20: workers is 0: write an integer from 1 to 256",
        "r.yaml:23: policy.tiers[0].price_per_slot_hour is missing; add it: a number of at least 0",
        "r.yaml:29: policy.tiers[1].spill_at is 'low': write a number from 0 to 1",
        "r.yaml:32: policy.models is a mapping: write a list",
    ]


def test_what_fits_its_type_is_judged_beside_what_does_not() -> None:
    told = complaints(
        listen="x", telemetry={"log_level": "loud"}, store={"kind": "redis"}, policy={"forward": {"total_s": 9_999}}
    ).splitlines()
    fields = [line.split(": ", 1)[1].split(" ")[0] for line in told]
    assert fields == ["listen", "telemetry.log_level", "store.url", "policy.forward.total_s"]


def test_a_faulty_section_is_not_blamed_for_what_would_be_there() -> None:
    limits = [{**LIMIT, "key": "demo", "tenant": "demo"}]
    told = complaints(auth={"api_keys": [{**KEY, "id": 7}]}, policy={"limits": limits}).splitlines()
    assert len(told) == 1
    assert "auth.api_keys[0].id is 7" in told[0]


def test_several_faults_of_one_check_are_told_together() -> None:
    limits = [{"name": "l"}, {"name": "l", "region": "eu", "requests_per_min": 1}]
    rewrites = [{"name": "r", "matches": [{}], "targets": [{"model": "a", "weight": 0}, {"model": "a", "weight": 0}]}]
    told = complaints(
        auth={"jwt": [{**JWT, "jwks_url": "http://a.example"}, {**JWT, "issuer": "j", "jwks_file": "/absent"}]},
        beats={"peers": ["x", "y"]},
        policy={"limits": limits, "rewrites": rewrites, "health": {"dead_after_s": 60, "suspect_after_s": 1}},
    ).splitlines()
    fields = [line.split(": ", 1)[1].split(" ")[0].rstrip(":") for line in told]
    assert fields == [
        "auth.jwt[0].jwks_url",
        "auth.jwt[1]",
        "auth.jwt[1].jwks_file",
        "beats.peers[0]",
        "beats.peers[1]",
        "policy.limits[0]",
        "policy.limits[1]",
        "policy.limits[1].name",
        "policy.rewrites[0].targets",
        "policy.rewrites[0].targets[1].model",
        "policy.health.dead_after_s",
        "policy.health.suspect_after_s",
    ]


def test_every_cycle_of_names_is_told_once() -> None:
    told = complaints(
        policy={
            "rewrites": [
                {"name": name, "matches": [{"model": asked}], "targets": [{"model": given}]}
                for name, asked, given in (
                    ("1", "a", "b"),
                    ("2", "b", "a"),
                    ("3", "x", "a"),
                    ("4", "p", "q"),
                    ("5", "q", "p"),
                )
            ]
        }
    ).splitlines()
    assert [line.split("itself: ")[1].split(" is a cycle")[0] for line in told] == ["a -> b -> a", "p -> q -> p"]
    assert "policy.rewrites[0].matches[0].model is 'a'" in told[0]


def test_tenants_of_open_ended_credentials_are_not_guessed_at() -> None:
    taken(auth={"jwt": [JWT]}, policy={"limits": [{**LIMIT, "tenant": "whoever", "key": "any"}]})
    assert "is no tenant" in complaints(
        auth={"jwt": [{**JWT, "tenants": ["acme"]}]}, policy={"limits": [{**LIMIT, "tenant": "whoever"}]}
    )


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file\n")
    (tmp_path / "c.pem").touch()
    (tmp_path / "k.pem").touch()
    config = taken(
        base=tmp_path,
        agents=[{"cluster": "eu-1", "token": {"file": "token"}}],
        tls={"cert": "c.pem", "key": str(tmp_path / "k.pem")},
        policy={"limits": [{**LIMIT, "key": "demo"}]},
    )
    assert config.tokens() == {"eu-1": "from-file"}
    assert config.tls is not None
    assert (config.tls.cert, config.tls.key) == (str(tmp_path / "c.pem"), str(tmp_path / "k.pem"))
    assert config.policy.limits[0].key == "demo"


def test_what_works_but_is_hardly_meant_is_a_warning() -> None:
    def warnings(**sections: Any) -> list[str]:
        return examine(taken(**sections)).warnings

    assert warnings() == []
    assert "nothing can be served" in warnings(agents=[])[0]
    assert "everybody" in warnings(auth={"insecure_no_auth": True})[0]
    assert "in the clear" in warnings(listen="0.0.0.0:8080")[0]
    dearer_first = [{"name": "a", "price_per_slot_hour": 2}, {"name": "b", "price_per_slot_hour": 1}]
    assert "a is filled before b, which is cheaper" in warnings(policy={"tiers": dearer_first})[0]
