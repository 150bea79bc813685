"""`gir serve -c FILE`: run a router until it is told to stop."""

import argparse
import asyncio
import gc
import os
import sys
from pathlib import Path

from gir.control.config import RouterConfig
from gir.control.policies import boot

EXIT_CUT = 1
EXIT_CANNOT_START = 2
_YOUNG_OBJECTS = 50_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and where the last good one is kept."""
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="configuration file (YAML)")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep the last good configuration here")
    parser.add_argument("--workers", type=int, metavar="N", help="processes on one port, each a full replica")


def run(arguments: argparse.Namespace) -> int:
    """Serve; 0 after an orderly stop, 1 when requests had to be cut, 2 when it could not start."""
    from gir.cli.workers import end_with_parent, of_worker, run_workers, worker_number

    try:
        config, rejected = boot(arguments.config, arguments.state_dir)
        workers = arguments.workers or config.workers
        number = worker_number()
        if workers > 1 and number is None:
            return run_workers(workers, arguments)
        if number is not None:
            end_with_parent()
            config = of_worker(config, number, workers)
        return _run_one(arguments, config, rejected, reuse_port=number is not None)
    except ValueError as error:
        sys.stderr.write(f"gir: {error}\n")
    except OSError as error:
        sys.stderr.write(f"gir: {error.strerror or error}\n")
    return EXIT_CANNOT_START


def _run_one(arguments: argparse.Namespace, config: RouterConfig, rejected: str, *, reuse_port: bool) -> int:
    # Before gRPC is imported: its core otherwise reports every closed connection on stderr, between our own lines.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    import uvloop

    from gir.app import Router

    async def serve() -> int:
        router = Router(
            config, log_stream=sys.stderr, path=arguments.config, state=arguments.state_dir, rejected=rejected
        )
        router.lifecycle.watch_signals()
        try:
            await router.start(reuse_port=reuse_port)
            # What start-up made lives as long as the process: the collector need not walk it again and again.
            gc.freeze()
            gc.set_threshold(_YOUNG_OBJECTS, 20, 100)
            return 0 if await router.run() else EXIT_CUT
        finally:
            await router.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())
