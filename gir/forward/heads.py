"""Request heads for clusters and response heads for clients: what may cross each boundary.

Towards a cluster only an allow-list passes; the caller's credentials never do. Towards the client everything passes but
what describes the inner connection, and our own headers are added.
"""

from gir.net.message import Headers, ResponseHead
from gir.net.render import header_lines
from gir.wire import headers as names


def forwarded(headers: Headers, *, trusted: bool) -> Headers:
    """Client headers that go to the cluster. A trusted caller's control headers pass too, hop counter excepted."""
    allowed = names.FORWARDED_REQUEST
    kept = [item for item in headers if item[0] in allowed]
    if trusted:
        kept += [
            item
            for item in headers
            if item[0].startswith(names.CONTROL_PREFIXES) and item[0] not in _WRITTEN_BY_US and item[0] not in allowed
        ]
    return kept


_WRITTEN_BY_US = frozenset(
    {names.HOPS, names.CRITICALITY, names.DEADLINE_MS, names.TENANT, names.CLUSTER_PIN, names.CANARY}
)


def returned(head: ResponseHead) -> bytes:
    """Lines of the answer's headers that reach the client; what its `Connection` header lists is dropped too."""
    dropped = names.NOT_RETURNED
    connection = head.get(b"connection")
    if connection is not None and connection not in (b"keep-alive", b"close"):
        dropped = dropped | {token.strip().lower() for token in connection.split(b",")}
    return header_lines([item for item in head.headers if item[0] not in dropped])
