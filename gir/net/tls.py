"""TLS contexts from files, read again when a file changes.

A context is asked for at every new connection; certificates rotated on disk are used from the next connection on.
Files that cannot be loaded leave the last good context in place and the reason in `error`.
"""

import os
import ssl
from abc import ABC, abstractmethod
from pathlib import Path


class _Files(ABC):
    """A context and the state of the files it was made from."""

    def __init__(self, *paths: str | None) -> None:
        self._paths = [Path(path) for path in paths if path is not None]
        self._seen = self._stamps()
        self._context = self._build()
        self.error: str | None = None
        """Why the newest files are not in use; None when they are."""

    @abstractmethod
    def _build(self) -> ssl.SSLContext: ...

    def _stamps(self) -> list[tuple[int, int, int]]:
        stamps = []
        for path in self._paths:
            stat = os.stat(path)
            stamps.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return stamps

    def context(self) -> ssl.SSLContext:
        """The context for a new connection."""
        try:
            stamps = self._stamps()
            if stamps != self._seen:
                self._context = self._build()
                self._seen = stamps
            self.error = None
        except (OSError, ssl.SSLError) as error:
            # A certificate is being replaced, or badly: the old one serves until the new one loads.
            self.error = f"{', '.join(map(str, self._paths))}: {error}"
        return self._context


class ServerTls(_Files):
    """Server side: `certificate` and `key` in PEM; with `client_ca` clients must present a certificate it signed.

    Raises OSError or ssl.SSLError when the files cannot be loaded at start.
    """

    def __init__(self, certificate: str, key: str, *, client_ca: str | None = None) -> None:
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        super().__init__(certificate, key, client_ca)

    def _build(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self._certificate, self._key)
        if self._client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self._client_ca)
        return context


class ClientTls(_Files):
    """Client side: `ca` in PEM (None: the system's), an own `certificate` and `key` for mTLS.

    `server_name` is the name to verify when the URL holds an address.
    """

    def __init__(
        self,
        *,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        server_name: str | None = None,
    ) -> None:
        self._ca = ca
        self._certificate = certificate
        self._key = key
        self.server_name = server_name
        super().__init__(ca, certificate, key)

    def _build(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if self._certificate is not None:
            context.load_cert_chain(self._certificate, self._key)
        return context
