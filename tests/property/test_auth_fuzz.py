"""Whatever a stranger sends as a credential or an issuer as keys: an answer of ours, never another exception."""

import base64
import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gir.auth.authenticator import Authenticator
from gir.auth.credentials import credential_of
from gir.auth.jwks import parse_key_set
from gir.clock import ManualClock
from gir.model.errors import RequestError
from gir.tasks import TaskSet
from tests.support.issuing import RSA_KEYS, FakeFetcher, document, public_jwk, settings, token

pytestmark = pytest.mark.slow
CLOCK = ManualClock()
NOW_S = CLOCK.wall_s()
GENUINE = token(NOW_S)
ALGORITHMS = ("RS256", "ES256", "EdDSA")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


def authenticator() -> Authenticator:
    made = Authenticator(settings(), clock=CLOCK, tasks=TaskSet(lambda *_: None), fetcher=FakeFetcher(None))
    for keys in made._issuers.values():
        keys.replaced(parse_key_set(document("one"), ALGORITHMS), None, CLOCK.monotonic_s())
    return made


GATE = authenticator()


def part(value: object) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")


def ask(credential: bytes) -> object:
    with contextlib.suppress(RequestError):
        return GATE.known(credential, NOW_S)
    return None


@given(st.binary(max_size=400))
def test_bytes_are_no_credential(credential: bytes) -> None:
    assert ask(credential) is None


@given(head=json_values, claims=json_values, signature=st.binary(max_size=300))
def test_json_of_any_shape_is_no_token(head: object, claims: object, signature: bytes) -> None:
    assert ask(b".".join((part(head), part(claims), base64.urlsafe_b64encode(signature).rstrip(b"=")))) is None


@given(
    changes=st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jwk", "jku", "x5u"]), json_values),
    claims=st.dictionaries(st.sampled_from(["iss", "aud", "exp", "nbf", "iat", "sub", "tenant"]), json_values),
)
def test_changed_heads_and_claims_are_not_believed(changes: dict[str, object], claims: dict[str, object]) -> None:
    head_part, claims_part, signature = GENUINE.split(b".")
    head = {**json.loads(base64.urlsafe_b64decode(head_part + b"==")), **changes}
    body = {**json.loads(base64.urlsafe_b64decode(claims_part + b"==")), **claims}
    made = b".".join((part(head), part(body), signature))
    assert made == GENUINE or ask(made) is None


@given(position=st.integers(0, len(GENUINE) - 1), byte=st.integers(0, 255))
def test_no_single_byte_can_be_changed(position: int, byte: int) -> None:
    changed = bytearray(GENUINE)
    changed[position] = byte
    principal = ask(bytes(changed))
    # The last character of a base64url part carries spare bits: another spelling of the same signature.
    assert principal is None or bytes(changed) == GENUINE or position == len(GENUINE) - 1


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_key_documents_parse_or_are_refused(served: bytes) -> None:
    with contextlib.suppress(ValueError):
        parse_key_set(served, ALGORITHMS)


@given(st.dictionaries(st.sampled_from(["kty", "kid", "use", "alg", "n", "e", "crv", "x", "y", "d", "k"]), json_values))
def test_keys_of_any_shape_are_used_or_left_out(fields: dict[str, object]) -> None:
    served = {"keys": [{**public_jwk(RSA_KEYS["one"], "one"), **fields}]}
    with contextlib.suppress(ValueError):  # infinity and NaN are no JSON
        parse_key_set(json.dumps(served).encode(), ALGORITHMS)


@given(st.none() | st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_headers_of_any_shape(authorization: bytes | None, api_key: bytes | None) -> None:
    with contextlib.suppress(RequestError):
        found = credential_of(authorization, api_key)
        assert found is None or found in (authorization or b"") or found in (api_key or b"")
