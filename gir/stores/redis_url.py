"""Which Redis: one server, a sentinel-watched pair or a cluster, from one URL.

    redis://[user:password@]host[:6379][/db]         rediss://...            TLS
    redis+sentinel://[user:password@]host:26379,host:26379/service[/db]      rediss+sentinel://...
    redis+cluster://[user:password@]host:6379,host:6379                      rediss+cluster://...
    unix:///path/to/socket

TLS takes `?ssl_ca_certs=FILE&ssl_certfile=FILE&ssl_keyfile=FILE`. Timeouts and retries are not taken from the URL: the
library's defaults (5 s and ten retries) would hold every request for a minute when the server freezes.
"""

from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

CONNECT_S = 1.0
CALL_S = 0.05
CONNECTIONS_MAX = 4
CLUSTER_CONNECTIONS_MAX = 16
"""To each node; the cluster client takes none back until it is told to."""
_SCHEMES = {
    "redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
}  # fmt: skip
_QUERY = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}

Client = Redis | RedisCluster


def redis_client(url: str, *, username: str | None = None, password: str | None = None) -> Client:
    """A client for `url`; nothing is connected yet. Raises ValueError naming the fault, never the password."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"store.url has the scheme {parts.scheme!r}; use one of {', '.join(sorted(_SCHEMES))}")
    query = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    if unknown := set(query) - _QUERY:
        raise ValueError(f"store.url has the unknown parameters {sorted(unknown)}; known are {sorted(_QUERY)}")
    options: dict[str, Any] = {
        "username": username or (unquote(parts.username) if parts.username else None),
        "password": password or (unquote(parts.password) if parts.password else None),
        "socket_connect_timeout": CONNECT_S,
        "socket_timeout": CALL_S,
        "retry": Retry(NoBackoff(), 0),
    }
    tls: dict[str, Any] = {**query} if parts.scheme.startswith("rediss") else {}
    if query and not tls:
        raise ValueError(f"store.url sets {sorted(query)} without TLS; use the scheme rediss")
    path = [part for part in parts.path.split("/") if part]
    if parts.scheme == "unix":
        return Redis(unix_socket_path=parts.path, max_connections=CONNECTIONS_MAX, **options)
    hosts = _hosts(parts.netloc, 26379 if "sentinel" in parts.scheme else 6379)
    if parts.scheme.endswith("+cluster"):
        nodes = [ClusterNode(host, port) for host, port in hosts]
        encrypted = parts.scheme.startswith("rediss")
        return RedisCluster(
            startup_nodes=nodes, ssl=encrypted, max_connections=CLUSTER_CONNECTIONS_MAX, **options, **tls
        )
    if parts.scheme.startswith("rediss"):
        options = {**options, **tls, "ssl": True}
    if parts.scheme.endswith("+sentinel"):
        return _behind_sentinels(hosts, path, options)
    (host, port), *others = hosts
    if others:
        raise ValueError("store.url names several hosts; use redis+sentinel:// or redis+cluster://")
    return Redis(host=host, port=port, db=_database(path), max_connections=CONNECTIONS_MAX, **options)


def _behind_sentinels(hosts: list[tuple[str, int]], path: list[str], options: dict[str, Any]) -> Redis:
    if not path:
        raise ValueError("store.url names no service; write redis+sentinel://host:26379/service")
    watchers = {"socket_timeout": CONNECT_S, "socket_connect_timeout": CONNECT_S, "retry": Retry(NoBackoff(), 0)}
    sentinel: Any = Sentinel(hosts, sentinel_kwargs=watchers)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(path[0], db=_database(path[1:]), **options)
    return client


def _database(path: list[str]) -> int:
    if not path:
        return 0
    if len(path) > 1 or not path[0].isdecimal():
        raise ValueError(f"store.url has the path {'/'.join(path)!r}; a database is one number")
    return int(path[0])


def _hosts(netloc: str, default_port: int) -> list[tuple[str, int]]:
    hosts: list[tuple[str, int]] = []
    for part in netloc.rpartition("@")[2].split(","):
        split = urlsplit(f"//{part}")
        if not split.hostname:
            raise ValueError("store.url has an empty host; write host:port, separated by commas")
        hosts.append((split.hostname, split.port or default_port))
    return hosts


def shown(url: str) -> str:
    """`url` without credentials and parameters, for logs."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
