"""One bounded HTTP GET of an issuer's keys. No redirects, no big answers, https unless the address is loopback."""

import asyncio
import ipaddress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

DOCUMENT_BYTES_MAX = 256 * 1024
FETCH_S = 5.0


class KeyFetchError(Exception):
    """The issuer's keys could not be had; the message says why and holds no secret."""


class Fetched(msgspec.Struct, frozen=True):
    """A key document; `document` None means the issuer said that nothing changed."""

    document: bytes | None
    etag: str | None = None


class KeyFetcher(Protocol):
    """Where key documents come from."""

    async def fetch(self, source: str, etag: str | None) -> Fetched:
        """Get the document at `source` (URL or path); raises KeyFetchError."""

    async def close(self) -> None:
        """Give back what the fetcher holds."""


def check_jwks_url(url: str, field: str = "jwks_url") -> None:
    """Raise ValueError, naming `field`, unless `url` is https, or http to loopback: plain HTTP lets keys be forged."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and parts.hostname and _is_loopback(parts.hostname):
        return
    raise ValueError(f"{field} is {url!r}: use https:// (plain http only to a loopback address)")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class HttpKeyFetcher:
    """Fetches over HTTP with one client session, or reads a file."""

    __slots__ = ("_session",)

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, source: str, etag: str | None) -> Fetched:
        if "://" not in source:
            return await _read_file(Path(source))
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=FETCH_S))
        headers = {"Accept": "application/json", **({"If-None-Match": etag} if etag else {})}
        try:
            async with self._session.get(source, headers=headers, allow_redirects=False) as answer:
                if answer.status == 304 and etag:
                    return Fetched(None, etag)
                if answer.status != 200:
                    raise KeyFetchError(f"HTTP status {answer.status}")
                return Fetched(await _bounded(answer.content), answer.headers.get("ETag"))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KeyFetchError(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    received = bytearray()
    async for chunk in content.iter_any():
        received += chunk
        if len(received) > DOCUMENT_BYTES_MAX:
            raise KeyFetchError(f"the document is longer than {DOCUMENT_BYTES_MAX} bytes")
    return bytes(received)


async def _read_file(path: Path) -> Fetched:
    try:
        return Fetched(await asyncio.to_thread(path.read_bytes))
    except OSError as error:
        raise KeyFetchError(f"{type(error).__name__}: {error.strerror}") from error
