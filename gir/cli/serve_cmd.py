"""`gir serve -c FILE`: run a router until it is told to stop."""

import argparse
import asyncio
import gc
import os
import sys
from pathlib import Path

import msgspec

from gir.control.config import RouterConfig
from gir.control.policies import boot
from gir.control.validate import examine
from gir.settings import ConfigError

EXIT_CUT = 1
EXIT_CANNOT_START = 2
_YOUNG_OBJECTS = 50_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The file, and where the last good one is kept."""
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="configuration file (YAML)")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="keep the last good configuration and operators' orders here"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes on one port, each a full replica")


def run(arguments: argparse.Namespace) -> int:
    """Serve; 0 after an orderly stop, 1 when requests had to be cut, 2 when it could not start."""
    from gir.cli.workers import end_with_parent, of_worker, run_workers, worker_number

    try:
        written, rejected = boot(arguments.config, arguments.state_dir)
        workers = arguments.workers or written.workers
        config = _with_workers(written, workers)
        number = worker_number()
        if workers > 1 and number is None:
            return run_workers(workers, arguments)
        if number is not None:
            end_with_parent()
            config = of_worker(config, number, workers)
        return _run_one(arguments, config, written, rejected)
    except ValueError as error:
        sys.stderr.write("".join(f"gir: {line}\n" for line in str(error).splitlines()))
    except OSError as error:
        sys.stderr.write(f"gir: {error.strerror or error}\n")
    return EXIT_CANNOT_START


def _with_workers(written: RouterConfig, workers: int) -> RouterConfig:
    """The configuration with as many workers as the command line asks for. Raises ConfigError if it forbids them."""
    if workers == written.workers:
        return written
    config = msgspec.structs.replace(written, workers=workers)
    as_read = msgspec.structs.replace(config, policy=msgspec.structs.replace(config.policy, digest=""))
    if errors := examine(as_read).errors:
        raise ConfigError("\n".join(f"--workers {workers}: {error}" for error in errors))
    return config


def _run_one(arguments: argparse.Namespace, config: RouterConfig, written: RouterConfig, rejected: str) -> int:
    # Before gRPC is imported: its core otherwise reports every closed connection on stderr, between our own lines.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    import uvloop

    from gir.app import Router
    from gir.cli.workers import shared_directory, worker_number

    async def serve() -> int:
        router = Router(
            config,
            log_stream=sys.stderr,
            path=arguments.config,
            state=arguments.state_dir,
            shared=shared_directory(),
            written=written,
            rejected=rejected,
        )
        router.lifecycle.watch_signals()
        try:
            await router.start(reuse_port=worker_number() is not None)
            # What start-up made lives as long as the process: the collector need not walk it again and again.
            gc.freeze()
            gc.set_threshold(_YOUNG_OBJECTS, 20, 100)
            return 0 if await router.run() else EXIT_CUT
        finally:
            await router.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve())
