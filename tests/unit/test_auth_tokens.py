"""Tokens good and bad, judged against keys in hand."""

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gir.auth.authenticator import Authenticator
from gir.auth.jwks import parse_key_set
from gir.auth.principal import claim_at
from gir.auth.settings import AuthSettings, ClaimMap, JwtIssuer
from gir.clock import ManualClock
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, RegionId, TenantId
from gir.model.policy import TenantPolicy
from gir.model.request import Criticality, Principal
from gir.tasks import TaskSet
from tests.support.issuing import (
    EC_KEY,
    ED_KEY,
    RSA_KEYS,
    FakeFetcher,
    document,
    hmac_token_signed_with_the_public_key,
    public_jwk,
    settings,
    token,
)

CLOCK = ManualClock()
NOW_S = CLOCK.wall_s()


async def ready(
    made: AuthSettings | None = None, served: bytes | None = None, tenants: tuple[TenantPolicy, ...] = ()
) -> Authenticator:
    """An authenticator that has fetched its keys."""
    failures: list[BaseException] = []
    authenticator = Authenticator(
        made or settings(),
        clock=CLOCK,
        tasks=TaskSet(lambda _, error: failures.append(error)),
        tenants=tenants,
        fetcher=FakeFetcher(served or document("one", "two")),
    )
    for issuer in authenticator._issuers.values():
        await authenticator._fetch_now(issuer)
    assert not failures
    return authenticator


def refusal(authenticator: Authenticator, credential: bytes | None, now_s: float = NOW_S) -> RequestError:
    with pytest.raises(RequestError) as caught:
        authenticator.known(credential, now_s)
    return caught.value


async def test_a_genuine_token_tells_who_asks() -> None:
    authenticator = await ready()
    expected = Principal(tenant=TenantId("acme"), key_id="alice")
    assert authenticator.known(token(NOW_S), NOW_S) == expected
    assert authenticator.known(token(NOW_S), NOW_S) == expected
    assert authenticator.known(token(NOW_S, kid="two", key=RSA_KEYS["two"]), NOW_S) == expected
    assert authenticator.known(token(NOW_S, aud=["other", "gir"]), NOW_S) == expected


@pytest.mark.parametrize(
    ("algorithm", "key", "fields"),
    [("ES256", EC_KEY, {}), ("EdDSA", ED_KEY, {}), ("RS256", RSA_KEYS["one"], {"use": "sig"})],
)
async def test_every_allowed_algorithm_is_verified(algorithm: str, key: Any, fields: dict[str, str]) -> None:
    served = json.dumps({"keys": [public_jwk(key, "k", **fields)]}).encode()
    authenticator = await ready(served=served)
    good = token(NOW_S, kid="k", key=key, algorithm=algorithm)
    assert authenticator.known(good, NOW_S) is not None
    assert "signature" in refusal(authenticator, good[:-6] + b"AAAAAA").message


BAD: dict[str, tuple[Callable[[], bytes], str]] = {
    "another key": (lambda: token(NOW_S, key=RSA_KEYS["two"]), "signature"),
    "changed claims": (lambda: swapped(token(NOW_S), tenant="other"), "signature"),
    "unsigned": (lambda: unsigned({"alg": "none", "kid": "one"}), "algorithm is not allowed"),
    "no signature": (lambda: token(NOW_S).rsplit(b".", 1)[0] + b".", "not known"),
    "none in capitals": (lambda: unsigned({"alg": "NoNe", "kid": "one"}), "algorithm is not allowed"),
    "HMAC with the public key": (lambda: hmac_token_signed_with_the_public_key(NOW_S), "algorithm is not allowed"),
    "algorithm of another key type": (lambda: unsigned({"alg": "ES256", "kid": "one"}), "signature"),
    "wrong audience": (lambda: token(NOW_S, aud="billing"), "another audience"),
    "no audience": (lambda: token(NOW_S, aud=None), "another audience"),
    "audience that is no text": (lambda: token(NOW_S, aud=[1, None]), "another audience"),
    "unknown issuer": (lambda: token(NOW_S, iss="https://evil.example"), "not trusted here"),
    "no issuer": (lambda: token(NOW_S, iss=None), "lacks the claim `iss`"),
    "expired": (lambda: token(NOW_S, exp=NOW_S - 61), "expired"),
    "no expiry": (lambda: token(NOW_S, exp=None), "`exp`"),
    "expiry that is no time": (lambda: unsigned_times("soon"), "signature"),
    "not valid yet": (lambda: token(NOW_S, nbf=NOW_S + 61), "not valid yet"),
    "issued in the future": (lambda: token(NOW_S, iat=NOW_S + 3_600), "not valid yet"),
    "critical extension": (lambda: token(NOW_S, head={"crit": ["exp"], "exp": 1}), "extensions"),
    "endless kid": (lambda: token(NOW_S, kid="k" * 300), "`kid`"),
    "kid that is no text": (lambda: unsigned({"alg": "RS256", "kid": 7}), "well-formed"),
    "not JSON": (lambda: b"eyJhYmM.eyJhYmM.c2ln", "well-formed"),
    "claims that are a list": (lambda: token(NOW_S).split(b".")[0] + b".W10.c2ln", "well-formed"),
    "four parts": (lambda: token(NOW_S) + b".x", "not known"),
    "spaces inside": (lambda: token(NOW_S).replace(b".", b" .", 1), "not known"),
}


def unsigned(head: dict[str, Any]) -> bytes:
    claims = token(NOW_S).split(b".")[1]
    return base64.urlsafe_b64encode(json.dumps(head).encode()).rstrip(b"=") + b"." + claims + b"." + b"c2ln"


def unsigned_times(exp: str) -> bytes:
    head, _, signature = token(NOW_S).split(b".")
    claims = {"iss": "https://login.example", "aud": "gir", "exp": exp}
    return head + b"." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=") + b"." + signature


def swapped(genuine: bytes, **claims: str) -> bytes:
    head, body, signature = genuine.split(b".")
    held = json.loads(base64.urlsafe_b64decode(body + b"=="))
    forged = base64.urlsafe_b64encode(json.dumps({**held, **claims}).encode()).rstrip(b"=")
    return head + b"." + forged + b"." + signature


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_token_is_refused_with_the_rule_it_broke(name: str) -> None:
    make, message = BAD[name]
    error = refusal(await ready(), make())
    assert error.kind is ErrorKind.UNAUTHENTICATED
    assert message in error.message


@pytest.mark.parametrize("exp", ["soon", True, float("1e15")])
async def test_an_expiry_that_is_no_time_is_refused_even_when_signed(exp: Any) -> None:
    # The encoder checks its own input, so the claims are signed by hand.
    head = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"one"}').rstrip(b"=")
    claims = {"iss": "https://login.example", "aud": "gir", "sub": "a", "tenant": "acme", "exp": exp}
    signed = head + b"." + base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=")
    signature = jwt.get_algorithm_by_name("RS256").sign(signed, RSA_KEYS["one"])
    forged = signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")
    assert "`exp`" in refusal(await ready(), forged).message


async def test_a_minute_of_clock_difference_is_forgiven_both_ways() -> None:
    authenticator = await ready()
    assert authenticator.known(token(NOW_S, exp=NOW_S - 59), NOW_S) is not None
    assert authenticator.known(token(NOW_S, nbf=NOW_S + 59, iat=NOW_S + 59), NOW_S) is not None


async def test_a_remembered_token_ends_when_it_expires() -> None:
    authenticator = await ready()
    short = token(NOW_S, exp=NOW_S + 10)
    assert authenticator.known(short, NOW_S) is not None
    assert authenticator.known(short, NOW_S + 69) is not None
    assert "expired" in refusal(authenticator, short, NOW_S + 71).message


async def test_remembered_tokens_are_bounded() -> None:
    authenticator = await ready(msgspec.structs.replace(settings(), tokens_cached_max=5))
    for number in range(12):
        assert authenticator.known(token(NOW_S, jti=str(number)), NOW_S) is not None
    assert len(authenticator._tokens) == 5


async def test_too_long_is_refused_unread() -> None:
    error = refusal(await ready(), token(NOW_S, note="x" * 9_000))
    assert "longer than 8192 bytes" in error.message


async def test_claims_map_to_what_the_principal_may_do() -> None:
    claims = ClaimMap(
        tenant="org.tenant", subject="client_id", models="models", regions="https://acme.example/regions",
        criticality_max="class",
    )  # fmt: skip
    policy = TenantPolicy(
        id=TenantId("acme"), models=(ModelId("llama"), ModelId("qwen")), criticality_default="critical"
    )
    authenticator = await ready(settings(claims=claims), tenants=(policy,))
    good = token(
        NOW_S,
        tenant=None,
        org={"tenant": "acme"},
        client_id="batch",
        models="llama mistral",
        **{"https://acme.example/regions": ["eu"], "class": "standard"},
    )
    assert authenticator.known(good, NOW_S) == Principal(
        tenant=TenantId("acme"),
        key_id="batch",
        models_allowed=frozenset({ModelId("llama")}),
        regions_allowed=frozenset({RegionId("eu")}),
        criticality_max=Criticality.STANDARD,
        criticality_default=Criticality.STANDARD,
    )


@pytest.mark.parametrize(
    ("mapped", "claims", "message"),
    [
        ({}, {"tenant": None}, "no usable tenant"),
        ({}, {"tenant": ["a"]}, "no usable tenant"),
        ({}, {"tenant": "x" * 300}, "no usable tenant"),
        ({}, {"tenant": "a\nb"}, "no usable tenant"),
        ({}, {"sub": None}, "no usable subject"),
        ({"models": "models"}, {}, "`models`"),
        ({"models": "models"}, {"models": 3}, "`models`"),
        ({"criticality_max": "class"}, {"class": "urgent"}, "`class`"),
    ],
)
async def test_a_genuine_token_that_says_too_little_is_forbidden_not_unrestricted(
    mapped: dict[str, str], claims: dict[str, Any], message: str
) -> None:
    error = refusal(await ready(settings(claims=ClaimMap(**mapped))), token(NOW_S, **claims))
    assert error.kind is ErrorKind.FORBIDDEN
    assert message in error.message


async def test_an_issuer_speaks_only_for_its_tenants() -> None:
    authenticator = await ready(settings(tenants=(TenantId("acme"),)))
    assert authenticator.known(token(NOW_S), NOW_S) is not None
    assert refusal(authenticator, token(NOW_S, tenant="rival")).kind is ErrorKind.FORBIDDEN


async def test_tokens_of_one_issuer_are_not_verified_with_keys_of_another() -> None:
    first = settings().jwt[0]
    second = JwtIssuer(issuer="https://other.example", audiences=("gir",), jwks_url="https://other.example/keys")
    authenticator = await ready(AuthSettings(jwt=(first, second)), served=document("one"))
    authenticator._issuers["https://other.example"]._keys = parse_key_set(document("two"), second.algorithms)
    crossed = token(NOW_S, iss="https://other.example")
    with pytest.raises(RequestError):
        authenticator.known(crossed, NOW_S)


@pytest.mark.parametrize(
    "fields",
    [
        {"use": "enc"},
        {"alg": "RS512"},
        {"kid": 5},
        {"kty": "oct", "k": "c2VjcmV0"},
        {"n": "AQAB"},
        {"kty": "RSA", "n": 5},
    ],
)
def test_keys_that_must_not_verify_are_left_out(fields: dict[str, Any]) -> None:
    served = {"keys": [{**public_jwk(RSA_KEYS["one"], "bad"), **fields}, public_jwk(RSA_KEYS["two"], "good")]}
    assert set(parse_key_set(json.dumps(served).encode(), ("RS256",))) == {"good"}


def test_short_keys_and_private_keys_are_left_out() -> None:
    short = rsa.generate_private_key(public_exponent=65_537, key_size=1_024)
    private = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEYS["one"]))
    served = {"keys": [public_jwk(short, "short"), {**private, "kid": "private"}]}
    assert parse_key_set(json.dumps(served).encode(), ("RS256",)) == {}


@pytest.mark.parametrize("served", [b"", b"[]", b'{"keys":{}}', b"<html>", b'{"keys":[', b'{"no":1}'])
def test_a_document_that_is_no_key_set_is_refused(served: bytes) -> None:
    with pytest.raises(ValueError, match="not a JWK set"):
        parse_key_set(served, ("RS256",))


def test_claims_are_found_by_name_before_by_path() -> None:
    assert claim_at({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
    assert claim_at({"a": {"b": 2}}, "a.b") == 2
    assert claim_at({"a": [1]}, "a.b") is None


async def test_knowing_a_token_costs_microseconds() -> None:
    authenticator = await ready()
    good = token(NOW_S)
    authenticator.known(good, NOW_S)
    fresh = [token(NOW_S, jti=str(number)) for number in range(60)]
    cached_us = min(timed(lambda: authenticator.known(good, NOW_S), 300) for _ in range(5))
    uncached_us = min(
        timed(lambda batch=fresh[part::3]: [authenticator.known(one, NOW_S) for one in batch], 1) / 20
        for part in range(3)
    )
    assert cached_us <= 5.0, f"cached {cached_us:.1f} us; 1.6 on a quiet machine"
    assert uncached_us <= 150.0, f"uncached {uncached_us:.1f} us; 60 on a quiet machine"


def timed(call: Callable[[], object], times: int) -> float:
    since_s = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - since_s) / times * 1e6


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS512", "RS1"])
def test_symmetric_and_absent_signatures_cannot_be_configured(algorithm: str) -> None:
    fields = {"issuer": "https://i.example", "audiences": ["gir"], "algorithms": [algorithm]}
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, JwtIssuer)
