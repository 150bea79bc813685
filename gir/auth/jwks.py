"""An issuer's published keys: which we hold, and when to ask again. Pure; the fetching is in `jwks_fetch`.

Tokens come from strangers, so what they claim must not decide how often the issuer is asked. Whatever the flood,
there is one fetch per cooldown; a `kid` that was looked for and not found is remembered as absent; keys that were
good stay good for `stale_s` while the issuer is away.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import jwt
import msgspec

from gir.auth.settings import JwtIssuer

KEYS_MAX = 64
UNKNOWN_MAX = 1_024
UNKNOWN_TTL_S = 300.0
RSA_BITS_MIN = 2_048
_KTY_OF_ALGORITHM = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class VerifyKey(msgspec.Struct, frozen=True):
    """One public key and the algorithms it may verify: those allowed for the issuer that fit its type."""

    kid: str | None
    key: Any
    algorithms: tuple[str, ...]


class _KeySet(msgspec.Struct):
    keys: list[Any]


class Lookup(enum.Enum):
    """Why there is no key for a token."""

    ASK = "ask"
    """Ask the issuer, or wait for the fetch under way."""
    ABSENT = "absent"
    """The issuer was asked lately and does not have it: the token is not genuine."""
    UNAVAILABLE = "unavailable"
    """Nobody can say: the issuer does not answer and may not be asked again yet."""


def parse_key_set(document: bytes, algorithms: Sequence[str]) -> dict[str | None, VerifyKey]:
    """Usable keys of a JWK set by `kid`. Keys of other types or uses are skipped; a broken set raises ValueError.

    A key is bound to algorithms here, from its own type, so a token's header cannot make an RSA key serve as
    anything else (RFC 8725 section 3.1).
    """
    try:
        listed = msgspec.json.decode(document, type=_KeySet).keys
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"not a JWK set: {error}") from error
    keys: dict[str | None, VerifyKey] = {}
    for fields in listed[:KEYS_MAX]:
        if isinstance(fields, dict) and (key := _usable(fields, algorithms)) is not None:
            keys[key.kid] = key
    return keys


def _usable(fields: Mapping[str, Any], allowed: Sequence[str]) -> VerifyKey | None:
    if fields.get("use", "sig") != "sig":
        return None
    fitting = [name for name in allowed if _KTY_OF_ALGORITHM[name[:2]] == fields.get("kty")]
    if "alg" in fields:
        fitting = [name for name in fitting if name == fields["alg"]]
    kid = fields.get("kid")
    if not fitting or not (kid is None or isinstance(kid, str)):
        return None
    try:
        key = jwt.PyJWK(dict(fields), algorithm=fitting[0]).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if hasattr(key, "private_numbers") or getattr(key, "key_size", RSA_BITS_MIN) < _bits_min(fields):
        return None
    return VerifyKey(kid, key, tuple(fitting))


def _bits_min(fields: Mapping[str, Any]) -> int:
    return RSA_BITS_MIN if fields.get("kty") == "RSA" else 0


class IssuerKeys:
    """Keys of one issuer and the memory that spares it from floods. Times are monotonic seconds."""

    __slots__ = (
        "_asked",
        "_attempted_s",
        "_fetched_s",
        "_keys",
        "_last_failed",
        "_unknown",
        "etag",
        "fetching",
        "issuer",
    )

    def __init__(self, issuer: JwtIssuer) -> None:
        self.issuer = issuer
        self.etag: str | None = None
        self.fetching = False
        self._keys: Mapping[str | None, VerifyKey] = {}
        self._fetched_s = float("-inf")
        self._attempted_s = float("-inf")
        self._last_failed = False
        self._asked = False
        self._unknown: dict[str, float] = {}

    def __repr__(self) -> str:
        state = "failing" if self._last_failed else "ok" if self._keys else "empty"
        return f"<IssuerKeys {self.issuer.issuer} {len(self._keys)} keys, {state}>"

    def find(self, kid: str | None, now_s: float) -> VerifyKey | Lookup:
        """The key named `kid` (or the only key when the token names none), or why it cannot be had."""
        usable = now_s - self._fetched_s <= self.issuer.stale_s
        if usable:
            if kid is None and len(self._keys) == 1:
                return next(iter(self._keys.values()))
            if (key := self._keys.get(kid)) is not None:
                return key
            if kid is None or self._unknown.get(kid, 0.0) > now_s:
                return Lookup.ABSENT
        self._asked = True
        if self.fetching or self.may_fetch(now_s):
            return Lookup.ASK
        return Lookup.UNAVAILABLE if self._last_failed or not usable else Lookup.ABSENT

    def may_fetch(self, now_s: float) -> bool:
        """Whether the cooldown since the last attempt is over."""
        return not self.fetching and now_s - self._attempted_s >= self.issuer.cooldown_s

    def due(self, now_s: float) -> bool:
        """Whether the background refresh should fetch now: by age, after a failure, or because a token asked."""
        wanted = self._asked or self._last_failed or now_s - self._attempted_s >= self.issuer.refresh_s
        return wanted and self.may_fetch(now_s)

    def started(self, now_s: float) -> None:
        """A fetch begins: the cooldown runs from here, whatever comes of it."""
        self.fetching = True
        self._asked = False
        self._attempted_s = now_s

    def failed(self) -> None:
        """The fetch came to nothing; the keys in hand stay."""
        self.fetching = False
        self._last_failed = True

    def unchanged(self, now_s: float) -> None:
        """The issuer confirmed the keys in hand."""
        self.fetching = False
        self._last_failed = False
        self._fetched_s = now_s

    def replaced(self, keys: Mapping[str | None, VerifyKey], etag: str | None, now_s: float) -> bool:
        """Take over a fetched set. True when a key went away or changed: verified tokens must be judged again."""
        withdrawn = any(kid not in keys or not _same(key, keys[kid]) for kid, key in self._keys.items())
        self._keys = keys
        self.etag = etag
        self._unknown.clear()
        self.unchanged(now_s)
        return withdrawn

    def not_found(self, kid: str | None, now_s: float) -> None:
        """Remember that a fetch made for `kid` did not bring it."""
        if kid is None or kid in self._keys:
            return
        while len(self._unknown) >= UNKNOWN_MAX:
            del self._unknown[next(iter(self._unknown))]
        self._unknown[kid] = now_s + UNKNOWN_TTL_S

    @property
    def failing(self) -> bool:
        """Whether the last fetch failed."""
        return self._last_failed


def _same(left: VerifyKey, right: VerifyKey) -> bool:
    return left.algorithms == right.algorithms and bool(left.key == right.key)
