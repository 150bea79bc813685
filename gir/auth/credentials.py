"""Reading a credential off a request's headers. The value is never logged, stored or put into a message."""

import hashlib
import secrets
from collections.abc import Iterable

from gir.model.errors import ErrorKind, RequestError

_CARRIERS = frozenset({b"authorization", b"x-api-key"})
KEY_PREFIX = "gir_"
"""Makes leaked keys findable by secret scanners."""


def credential_of(authorization: bytes | None, api_key: bytes | None) -> bytes | None:
    """The credential in `Authorization: Bearer ...` or `x-api-key: ...` (Anthropic clients); None when there is none.

    Raises RequestError UNAUTHENTICATED for another scheme, and when both headers are there and disagree: choosing
    one silently would hide which identity was meant.
    """
    bearer = None
    if authorization is not None:
        scheme, _, value = authorization.strip().partition(b" ")
        bearer = value.strip()
        if scheme.lower() != b"bearer" or not bearer:
            raise unauthenticated("use the header `Authorization: Bearer <key or token>`")
    api_key = api_key.strip() if api_key else None
    if bearer and api_key and bearer != api_key:
        raise unauthenticated("Authorization and x-api-key name different credentials; send one of them")
    return bearer or api_key or None


def check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise RequestError UNAUTHENTICATED when a header that carries a credential is there twice with different values:
    what stands in front of the router may have looked at the other one.
    """
    seen: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _CARRIERS and seen.setdefault(name, value) != value:
            raise unauthenticated(f"the header {name.decode()} is there twice with different values; send one")


def digest_of(credential: bytes) -> bytes:
    """SHA-256, under which credentials are looked up: neither tables nor caches hold a usable secret."""
    return hashlib.sha256(credential).digest()


def new_secret() -> str:
    """A fresh API key: 256 random bits, so guessing is hopeless and a fast hash is enough."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def unauthenticated(message: str) -> RequestError:
    """A 401 with `message`, which must not contain any part of the credential."""
    return RequestError(ErrorKind.UNAUTHENTICATED, message)
