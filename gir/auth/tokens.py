"""Verifying one JWT against keys in hand: synchronous, and strict about everything a token can lie about.

PyJWT's algorithm objects check the signature. Form and claims are checked here: PyJWT walks a token character by
character in Python (half of the cost of an RS256 check, and more for the long tokens of large issuers), and reads
the system clock, which virtual time and the simulator cannot move.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import jwt
import msgspec

from gir.auth.credentials import unauthenticated
from gir.auth.jwks import VerifyKey
from gir.auth.settings import JwtIssuer

KID_CHARS_MAX = 256
_FORM = re.compile(rb"(eyJ[A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
_TIME_MAX_S = 1e12


class TokenHead(msgspec.Struct):
    """The parts of a JWT's header that choose a key."""

    alg: str
    kid: str | None = None
    crit: Any = None
    b64: Any = None


class Token(msgspec.Struct):
    """A well-formed JWT, its signature not checked: `head` and `issuer` only choose which key to try."""

    head: TokenHead
    issuer: str
    claims: dict[str, Any]
    signed: bytes
    signature: bytes


_decode_head = msgspec.json.Decoder(TokenHead).decode
_decode_claims = msgspec.json.Decoder(dict[str, Any]).decode


def parse(credential: bytes) -> Token | None:
    """Read `credential` as a JWT; None when it does not have the form of one.

    Raises RequestError UNAUTHENTICATED when it has the form but not the content, or demands extensions (`crit`,
    `b64`), which would change the meaning of what follows.
    """
    form = _FORM.fullmatch(credential)
    if form is None:
        return None
    head_part, claims_part, signature_part = form.groups()
    try:
        head = _decode_head(_unbase64(head_part))
        claims = _decode_claims(_unbase64(claims_part))
        signature = _unbase64(signature_part)
    except (msgspec.MsgspecError, binascii.Error, UnicodeDecodeError, RecursionError):
        raise unauthenticated("the token is not a well-formed JWT") from None
    if head.crit is not None or head.b64 is not None:
        raise unauthenticated("the token demands JWS extensions, which are not supported")
    if head.kid is not None and len(head.kid) > KID_CHARS_MAX:
        raise unauthenticated(f"the token's `kid` is longer than {KID_CHARS_MAX} characters")
    issuer = claims.get("iss")
    if not isinstance(issuer, str):
        raise unauthenticated("the token lacks the claim `iss`")
    return Token(head, issuer, claims, credential[: form.end(2)], signature)


def _unbase64(part: bytes) -> bytes:
    return base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4))


def verify(token: Token, key: VerifyKey, issuer: JwtIssuer, now_wall_s: float) -> None:
    """Return if `token` is genuine, meant for us and timely; raise RequestError UNAUTHENTICATED otherwise.

    The algorithm must be one that `key` itself is bound to, so a token cannot have an RSA key used as an HMAC
    secret, nor be unsigned (RFC 8725 sections 3.1 and 3.2).
    """
    if token.head.alg not in key.algorithms or not _genuine(token, key):
        raise unauthenticated("the token's signature is not valid")
    if token.issuer != issuer.issuer:
        raise unauthenticated("the token is from another issuer")
    audience = token.claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if not any(name in issuer.audiences for name in named if isinstance(name, str)):
        raise unauthenticated("the token is for another audience")
    _check_times(token.claims, issuer.leeway_s, now_wall_s)


def _genuine(token: Token, key: VerifyKey) -> bool:
    try:
        return bool(jwt.get_algorithm_by_name(token.head.alg).verify(token.signed, key.key, token.signature))
    except (jwt.PyJWTError, ValueError, TypeError):
        return False


def ends_s(claims: Mapping[str, Any], leeway_s: float) -> float:
    """Wall-clock time from which a token with these `claims` is refused."""
    return _number(claims, "exp") + leeway_s


def _check_times(claims: Mapping[str, Any], leeway_s: float, now_wall_s: float) -> None:
    if now_wall_s >= ends_s(claims, leeway_s):
        raise unauthenticated("the token has expired; ask your issuer for a new one")
    for name in ("nbf", "iat"):
        if name in claims and now_wall_s < _number(claims, name) - leeway_s:
            raise unauthenticated(f"the token is not valid yet (`{name}` lies in the future)")


def _number(claims: Mapping[str, Any], name: str) -> float:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _TIME_MAX_S:
        raise unauthenticated(f"the token's claim `{name}` is missing or not a time in seconds")
    return float(value)
