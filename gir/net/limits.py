"""Bounds of the server side. Each one has a test that reaches it."""

import msgspec


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one server accepts from clients."""

    header_bytes_max: int = 16_384
    """Request line and headers of one request; beyond it 431."""
    headers_max: int = 100
    target_bytes_max: int = 8_192
    body_bytes_max: int = 32 * 1024 * 1024
    """Request body; a larger Content-Length is refused before a byte of it is read."""
    connections_max: int = 32_768
    """Open client connections. At the bound accepting pauses and the kernel's backlog holds the rest."""
    connections_per_peer_max: int = 16_384
    """Open connections of one address; further ones are closed at once."""
    in_flight_max: int = 10_000
    """Requests whose handler runs; further ones get 503 before their body is read."""
    bodies_bytes_max: int = 2 * 1024 * 1024 * 1024
    """Bodies of all requests in flight, together; a request whose body would not fit gets 503."""
    header_read_s: float = 10.0
    """From the first byte of a head (or from connecting) to its last."""
    body_bytes_per_s_min: int = 1_000
    """Slowest body rate, judged over each `body_window_s`."""
    body_window_s: float = 10.0
    keep_alive_s: float = 75.0
    """How long an idle connection stays open."""
    write_stall_s: float = 30.0
    """A client that takes no byte for so long while bytes wait for it is gone."""
    pipeline_bytes_max: int = 65_536
    """What a client may send ahead while a request of its is in flight; what lies beyond is dropped with the
    connection, after the answer."""
    write_high_bytes: int = 32_768
    """Unsent response bytes above which the upstream is paused."""
    linger_s: float = 2.0
    """How long input is read and dropped after an early refusal, so that the client sees the answer, not a reset."""
    backlog: int = 2_048
