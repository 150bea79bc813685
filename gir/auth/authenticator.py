"""Who is asking: API key or JWT to `Principal`. The first stage of every request.

The usual answer is one hash and one look-up (`known`). Only a token whose issuer's keys are not in hand makes a
request wait (`authenticate`), for `key_wait_s` at most. The order of the checks is from cheap to dear, so that
nonsense costs little.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from gir.auth.credentials import digest_of, unauthenticated
from gir.auth.jwks import IssuerKeys, Lookup, parse_key_set
from gir.auth.jwks_fetch import HttpKeyFetcher, KeyFetcher, KeyFetchError, check_jwks_url
from gir.auth.keyring import KeyRing, read_keys
from gir.auth.principal import ANONYMOUS, grant_of_claims, principal_of
from gir.auth.settings import AuthSettings, JwtIssuer
from gir.auth.tokens import Token, ends_s, parse, verify
from gir.clock import Clock
from gir.model.errors import ErrorKind, RequestError
from gir.model.policy import TenantPolicy
from gir.model.request import Principal
from gir.tasks import TaskSet

REFRESH_TICK_S = 0.5


class AuthObserver(Protocol):
    """What operators see of authentication. No method is ever given a credential."""

    def keys_fetched(self, issuer: str, ok: bool, detail: str) -> None:
        """An issuer was asked for its keys."""

    def keys_file(self, ok: bool, detail: str) -> None:
        """The API keys file was read again."""


class SilentObserver:
    """Sees nothing: for tests and tools."""

    def keys_fetched(self, issuer: str, ok: bool, detail: str) -> None:
        """Ignore."""

    def keys_file(self, ok: bool, detail: str) -> None:
        """Ignore."""


class _Verified(msgspec.Struct, frozen=True):
    principal: Principal
    ends_s: float


class Authenticator:
    """Turns credentials into principals. One per process; `start` begins the background refresh."""

    def __init__(
        self,
        settings: AuthSettings,
        *,
        clock: Clock,
        tasks: TaskSet,
        tenants: Sequence[TenantPolicy] = (),
        fetcher: KeyFetcher | None = None,
        observer: AuthObserver | None = None,
    ) -> None:
        """Raises ValueError when the settings cannot be enforced (bad URL, keys listed twice, unreadable file)."""
        self._clock = clock
        self._tasks = tasks
        self._fetcher = fetcher or HttpKeyFetcher()
        self._observer = observer or SilentObserver()
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._tokens: dict[bytes, _Verified] = {}
        self._issuers: dict[str, IssuerKeys] = {}
        self._file_stamp: tuple[int, int, int] | None = None
        self._file_read_s = float("-inf")
        self.apply(settings, tenants)

    def __repr__(self) -> str:
        return f"<Authenticator {len(self._ring)} keys, {len(self._issuers)} issuers, {len(self._tokens)} tokens>"

    def apply(self, settings: AuthSettings, tenants: Sequence[TenantPolicy]) -> None:
        """Take over new settings and tenant policies as a whole; raises ValueError and changes nothing when bad."""
        policies = {policy.id: policy for policy in tenants}
        ring, stamp = self._load_ring(settings, policies)
        issuers: dict[str, IssuerKeys] = {}
        for issuer in settings.jwt:
            _check_issuer(issuer, issuers)
            held = self._issuers.get(issuer.issuer)
            issuers[issuer.issuer] = held if held is not None and held.issuer == issuer else IssuerKeys(issuer)
        self._settings, self._policies, self._ring, self._file_stamp = settings, policies, ring, stamp
        self._issuers = issuers
        self._tokens.clear()

    def known(self, credential: bytes | None, now_wall_s: float, digest: bytes | None = None) -> Principal | None:
        """Principal of `credential` when it can be told without waiting; None when an issuer must be asked first.

        `digest` is `digest_of(credential)`, from a caller that asks about the same one again and again.
        Raises RequestError: UNAUTHENTICATED for a missing, unknown, forged or expired credential, FORBIDDEN for a
        genuine token that names no usable tenant.
        """
        if self._settings.insecure_no_auth:
            return ANONYMOUS
        found = self._find(credential, now_wall_s, digest)
        return None if isinstance(found, IssuerKeys) else found

    async def authenticate(self, credential: bytes | None) -> Principal:
        """As `known`, but asks the issuer when needed; AUTH_UNAVAILABLE when it does not answer in `key_wait_s`."""
        if self._settings.insecure_no_auth:
            return ANONYMOUS
        found = self._find(credential, self._clock.wall_s())
        if not isinstance(found, IssuerKeys):
            return found
        assert credential is not None
        await self._ask(found)
        # A fetch that failed says nothing about what the issuer publishes.
        if not found.failing and (token := parse(credential)) is not None:
            found.not_found(token.head.kid, self._clock.monotonic_s())
        found = self._find(credential, self._clock.wall_s())
        if isinstance(found, IssuerKeys):
            raise _unavailable(found.issuer.cooldown_s)
        return found

    def _find(self, credential: bytes | None, now_wall_s: float, digest: bytes | None = None) -> Principal | IssuerKeys:
        """Principal, or the issuer whose keys must be fetched first."""
        if credential is None:
            raise unauthenticated("no credential; use the header `Authorization: Bearer <key or token>`")
        if len(credential) > self._settings.token_bytes_max:
            raise unauthenticated(f"the credential is longer than {self._settings.token_bytes_max} bytes")
        if digest is None:
            digest = digest_of(credential)
        verified = self._tokens.get(digest)
        if verified is not None:
            if now_wall_s < verified.ends_s:
                return verified.principal
            del self._tokens[digest]
        principal = self._ring.find(digest, now_wall_s)
        if principal is not None:
            return principal
        token = parse(credential) if self._issuers else None
        if token is None:
            raise unauthenticated("the API key is not known")
        return self._verify(token, digest, now_wall_s)

    def _verify(self, token: Token, digest: bytes, now_wall_s: float) -> Principal | IssuerKeys:
        keys = self._issuers.get(token.issuer)
        if keys is None:
            raise unauthenticated("the token is from an issuer that is not trusted here")
        if token.head.alg not in keys.issuer.algorithms:
            raise unauthenticated("the token's algorithm is not allowed for its issuer")
        key = keys.find(token.head.kid, self._clock.monotonic_s())
        if key is Lookup.ASK:
            return keys
        if key is Lookup.UNAVAILABLE:
            raise _unavailable(keys.issuer.cooldown_s)
        if isinstance(key, Lookup):
            raise unauthenticated("the token is signed by a key its issuer does not publish")
        verify(token, key, keys.issuer, now_wall_s)
        grant = grant_of_claims(token.claims, keys.issuer)
        principal = principal_of(grant, self._policies.get(grant.tenant))
        verified = _Verified(principal, ends_s(token.claims, keys.issuer.leeway_s))
        while len(self._tokens) >= self._settings.tokens_cached_max:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[digest] = verified
        return principal

    async def _ask(self, keys: IssuerKeys) -> None:
        fetch = self._fetch_now(keys)
        try:
            async with asyncio.timeout(self._settings.key_wait_s):
                await asyncio.shield(fetch)
        except TimeoutError:
            raise _unavailable(1.0) from None

    def _fetch_now(self, keys: IssuerKeys) -> asyncio.Task[None]:
        """The fetch under way for this issuer, or a new one: never two at once."""
        name = keys.issuer.issuer
        running = self._fetches.get(name)
        if running is None or running.done():
            keys.started(self._clock.monotonic_s())
            running = self._fetches[name] = self._tasks.spawn(self._fetch(keys), name=f"jwks {name}")
        return running

    async def _fetch(self, keys: IssuerKeys) -> None:
        source = keys.issuer.jwks_url or keys.issuer.jwks_file
        assert source is not None
        try:
            fetched = await self._fetcher.fetch(source, keys.etag)
            now_s = self._clock.monotonic_s()
            if fetched.document is None:
                keys.unchanged(now_s)
            elif keys.replaced(parse_key_set(fetched.document, keys.issuer.algorithms), fetched.etag, now_s):
                self._tokens.clear()
        except (KeyFetchError, ValueError) as error:
            keys.failed()
            self._observer.keys_fetched(keys.issuer.issuer, False, str(error))
        except BaseException:
            keys.failed()
            raise
        else:
            self._observer.keys_fetched(keys.issuer.issuer, True, repr(keys))

    def start(self) -> None:
        """Begin refreshing keys and the keys file in the background."""
        _ = self._tasks.spawn(self._refresh(), name="auth refresh")

    async def _refresh(self) -> None:
        while True:
            now_s = self._clock.monotonic_s()
            for keys in self._issuers.values():
                if keys.due(now_s):
                    _ = self._fetch_now(keys)
            if now_s - self._file_read_s >= self._settings.keys_reload_s:
                self._file_read_s = now_s
                self.reload_keys()
            await self._clock.sleep_s(REFRESH_TICK_S)

    def reload_keys(self) -> None:
        """Read the keys file again if it changed; a bad file leaves the last good keys in place."""
        path = self._settings.api_keys_file
        if path is None or _stamp_of(Path(path)) == self._file_stamp:
            return
        try:
            self._ring, self._file_stamp = self._load_ring(self._settings, self._policies)
        except ValueError as error:
            self._file_stamp = _stamp_of(Path(path))
            self._observer.keys_file(False, str(error))
        else:
            self._observer.keys_file(True, f"{len(self._ring)} keys")

    def _load_ring(
        self, settings: AuthSettings, policies: dict[Any, TenantPolicy]
    ) -> tuple[KeyRing, tuple[int, int, int] | None]:
        if settings.api_keys_file is None:
            return KeyRing(settings.api_keys, policies), None
        path = Path(settings.api_keys_file)
        stamp = _stamp_of(path)
        return KeyRing((*settings.api_keys, *read_keys(path).keys), policies), stamp

    def rows(self) -> list[dict[str, object]]:
        """State of each issuer's keys, for the admin API."""
        return [{"issuer": name, "state": repr(keys), "failing": keys.failing} for name, keys in self._issuers.items()]

    async def close(self) -> None:
        """Stop fetching. The task set is its owner's to close."""
        await self._fetcher.close()


def _stamp_of(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _check_issuer(issuer: JwtIssuer, seen: dict[str, IssuerKeys]) -> None:
    if issuer.issuer in seen:
        raise ValueError(f"auth.jwt lists the issuer {issuer.issuer!r} twice; merge the two entries")
    if (issuer.jwks_url is None) == (issuer.jwks_file is None):
        raise ValueError(f"auth.jwt issuer {issuer.issuer!r}: give either jwks_url or jwks_file")
    if issuer.jwks_url is not None:
        check_jwks_url(issuer.jwks_url)


def _unavailable(retry_after_s: float) -> RequestError:
    return RequestError(
        ErrorKind.AUTH_UNAVAILABLE,
        "the keys of the token's issuer cannot be had at the moment; try again, or use an API key",
        retry_after_s=retry_after_s,
    )
