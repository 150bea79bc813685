"""How a beat stream is carried: gRPC channel arguments and credentials of both ends.

`grpc.http2.ping_timeout_ms` is the argument that matters: without it a frozen peer is noticed after a minute, whatever
the keepalive timeout says. The server must also permit pings as frequent as these, or it answers them with GOAWAY.
"""

from pathlib import Path

import grpc

from gir.wire.beats import TRANSPORT_BYTES_MAX

METHOD = "/gir.v1.Fleet/Report"
KEEPALIVE_MS = 2_000
PING_TIMEOUT_MS = 1_900
"""With KEEPALIVE_MS: a peer whose machine is gone is noticed within 4 s even when no beat is under way."""

_COMMON: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Its pings buy throughput that beats do not need, and are counted against whoever sends them.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", TRANSPORT_BYTES_MAX),
    ("grpc.max_send_message_length", TRANSPORT_BYTES_MAX),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MS // 2),
    # A router that was starved of CPU reads pings in a row that were sent seconds apart: to punish their senders for
    # it would disconnect every agent at once, over and over, when the router can bear it least.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 64),
    ("grpc.so_reuseport", 0),  # a second router on the same port must fail, not share
)
CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    *_COMMON,
    ("grpc.enable_retries", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


def server_credentials(cert: Path, key: Path, client_ca: Path | None = None) -> grpc.ServerCredentials:
    """TLS of the router's beat port; with `client_ca`, agents must present a certificate of that authority.

    Raises OSError when a file cannot be read.
    """
    pair = (key.read_bytes(), cert.read_bytes())
    if client_ca is None:
        return grpc.ssl_server_credentials((pair,))
    return grpc.ssl_server_credentials((pair,), client_ca.read_bytes(), require_client_auth=True)


def channel_credentials(
    ca: Path | None = None, cert: Path | None = None, key: Path | None = None
) -> grpc.ChannelCredentials:
    """TLS of the agent's side: trust `ca` (None: the system's), present `cert` and `key` when given.

    Raises OSError when a file cannot be read.
    """
    return grpc.ssl_channel_credentials(
        ca.read_bytes() if ca else None, key.read_bytes() if key else None, cert.read_bytes() if cert else None
    )
