"""How the router's ports are opened: TLS, who may call, and what is said when an address is not to be had."""

from pathlib import Path

import grpc

from gir.control.config import AdminSection, TlsSection
from gir.net.tls import ServerTls
from gir.settings import host_and_port
from gir.telemetry.admin import OPERATOR, READER, AdminAccess, AdminToken


def admin_access(section: AdminSection) -> AdminAccess:
    """Who may do what on the admin port."""
    tokens = [
        AdminToken(
            name=token.id,
            digest=bytes.fromhex(token.token_sha256),
            role=READER if token.role == "viewer" else OPERATOR,
        )
        for token in section.tokens
    ]
    return AdminAccess(tokens, public_metrics=section.public_metrics)


def server_tls(section: TlsSection | None) -> ServerTls | None:
    """TLS of the data port; None without."""
    return None if section is None else ServerTls(section.cert, section.key, client_ca=section.client_ca)


def beat_credentials(section: TlsSection | None) -> grpc.ServerCredentials | None:
    """TLS of the beat port; None without."""
    if section is None:
        return None
    key, certificate = Path(section.key).read_bytes(), Path(section.cert).read_bytes()
    authority = Path(section.client_ca).read_bytes() if section.client_ca else None
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=authority, require_client_auth=authority is not None
    )


async def listen(what: str, start: object, address: str) -> None:
    """Call `start(host, port)` for `address`. Raises OSError naming the address."""
    assert callable(start), "a server starts by a call"
    try:
        await start(*host_and_port(address, f"{what}.listen"))
    except OSError as error:
        raise OSError(
            error.errno, f"{what} cannot listen on {address}: {error.strerror}; free the port or choose another"
        ) from None
