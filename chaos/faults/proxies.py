"""TCP proxies in a thread of their own, so that a synchronous fleet can have them and drills can poison them."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from chaos.faults.tcp import TcpProxy, Toxic
from gir.clock import SystemClock

CALL_S = 5.0
T = TypeVar("T")


class ProxyHost:
    """Runs proxies on one event loop. Every method may be called from any thread but that loop's own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxies", daemon=True)
        self._thread.start()
        self._proxies: list[TcpProxy] = []

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    def open(self, port: int) -> TcpProxy:
        """A proxy before a port of this machine."""
        proxy = TcpProxy(("127.0.0.1", port), SystemClock())
        self._call(proxy.start())
        self._proxies.append(proxy)
        return proxy

    def add(self, proxy: TcpProxy, toxic: Toxic) -> None:
        """Install a toxic."""
        self._call(proxy.add(toxic))

    def remove(self, proxy: TcpProxy, name: str) -> None:
        """Take a toxic away."""
        self._call(proxy.remove(name))

    def close(self) -> None:
        """Close every proxy and end the thread. Safe to call twice."""
        if self._loop.is_closed():
            return
        for proxy in self._proxies:
            self._call(proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()
