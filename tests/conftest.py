"""What every test run needs."""

import asyncio
import os

# Before anything imports gRPC, whose core otherwise reports every closed connection on stderr.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
# Its fork handlers start threads in every forked child, between fork and exec, and now and then abort it there.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"


def pytest_configure() -> None:
    """Say that the main thread has no event loop yet.

    The asyncio plugin asks for the current loop before it sets its own; on Python 3.11 that makes one that nobody
    closes, and the unclosed loop then fails whichever test the collector happens to run in.
    """
    asyncio.set_event_loop(None)
