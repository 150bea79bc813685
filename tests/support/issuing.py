"""An issuer for tests: keys, tokens good and bad, and a fetcher that does what it is told."""

import asyncio
import hashlib
import hmac
import json
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from gir.auth.jwks_fetch import Fetched, KeyFetchError
from gir.auth.settings import ApiKey, AuthSettings, JwtIssuer
from gir.model.ids import TenantId

ISSUER = "https://login.example"
AUDIENCE = "gir"
RSA_KEYS = {name: rsa.generate_private_key(public_exponent=65_537, key_size=2_048) for name in ("one", "two")}
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
_ALGORITHMS = {"RSA": jwt.algorithms.RSAAlgorithm, "EC": jwt.algorithms.ECAlgorithm, "OKP": jwt.algorithms.OKPAlgorithm}


def public_jwk(key: Any, kid: str, **fields: Any) -> dict[str, Any]:
    """The public JWK of a private key."""
    kind = (
        "RSA" if isinstance(key, rsa.RSAPrivateKey) else "EC" if isinstance(key, ec.EllipticCurvePrivateKey) else "OKP"
    )
    return {**json.loads(_ALGORITHMS[kind].to_jwk(key.public_key())), "kid": kid, **fields}


def document(*kids: str) -> bytes:
    """A JWK set of RSA keys by name."""
    return json.dumps({"keys": [public_jwk(RSA_KEYS[kid], kid, alg="RS256", use="sig") for kid in kids]}).encode()


def token(
    now_s: float, *, kid: str | None = "one", key: Any = None, algorithm: str = "RS256", head: Any = None, **claims: Any
) -> bytes:
    """A token of `ISSUER` for tenant acme, good for ten minutes, with the given claims changed (None: left out)."""
    made = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "tenant": "acme",
        "iat": now_s,
        "exp": now_s + 600,
        **claims,
    }
    headers = {**({"kid": kid} if kid is not None else {}), **(head or {})}
    chosen = {name: value for name, value in made.items() if value is not None}
    return jwt.encode(chosen, key or RSA_KEYS["one"], algorithm=algorithm, headers=headers).encode()


def hmac_token_signed_with_the_public_key(now_s: float) -> bytes:
    """HS256 with the RSA public key as secret: what an HMAC-or-RSA verifier takes for genuine."""
    public = RSA_KEYS["one"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "eve", "tenant": "acme", "exp": now_s + 600}
    parts = [jwt.utils.base64url_encode(json.dumps(part).encode()) for part in ({"alg": "HS256", "kid": "one"}, claims)]
    signed = b".".join(parts)
    return signed + b"." + jwt.utils.base64url_encode(hmac.digest(public, signed, "sha256"))


def key_record(secret: str, **fields: Any) -> ApiKey:
    """The record of an API key."""
    made = {"id": "ci", "tenant": TenantId("acme"), "key_sha256": hashlib.sha256(secret.encode()).hexdigest(), **fields}
    return ApiKey(**made)


def settings(*keys: ApiKey, **issuer: Any) -> AuthSettings:
    """API keys, and one issuer with the given fields changed."""
    made = {"issuer": ISSUER, "audiences": (AUDIENCE,), "jwks_url": "https://login.example/keys", **issuer}
    return AuthSettings(api_keys=keys, jwt=(JwtIssuer(**made),))


class FakeFetcher:
    """Serves `document`, `delay_s` later; raises when it is None. Counts how often it was asked."""

    def __init__(self, served: bytes | None) -> None:
        self.document = served
        self.delay_s = 0.0
        self.fetches = 0
        self.etags: list[str | None] = []

    async def fetch(self, source: str, etag: str | None) -> Fetched:
        self.fetches += 1
        self.etags.append(etag)
        await asyncio.sleep(self.delay_s)
        if self.document is None:
            raise KeyFetchError("HTTP status 500")
        mark = hashlib.sha256(self.document).hexdigest()
        return Fetched(None, etag) if etag == mark else Fetched(self.document, mark)

    async def close(self) -> None:
        """Nothing is held."""
