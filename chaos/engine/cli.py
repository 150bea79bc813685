"""`gir-chaos engine`: host simulated engines, from a file or one from the command line."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from chaos.engine.pod import PodConfig
from chaos.engine.server import HostConfig, load, serve


def main(command: str, arguments: Sequence[str]) -> int:
    """Run until SIGINT or SIGTERM. Exit codes: 0 stopped, 2 wrong configuration, 1 port in use."""
    parser = argparse.ArgumentParser(prog=f"gir-chaos {command}", description=__doc__)
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="YAML file with `pods:`")
    parser.add_argument("--ready-file", type=Path, metavar="F", help="write names and addresses as JSON once listening")
    parser.add_argument("--listen", default="127.0.0.1:8000", help="without a file: address (default: %(default)s)")
    parser.add_argument("--model", default="llama-70b", help="without a file: model name (default: %(default)s)")
    parser.add_argument("--gpu", default="llama2-70b/h100-80gb/tp8", help="GPU profile (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=16, help="requests in the batch at once (default: %(default)s)")
    parser.add_argument("--time-scale", type=float, default=1.0, help="0.1 runs ten times as fast (default: 1)")
    parser.add_argument("--dialect", default="vllm", help="vllm, vllm-old or sglang (default: %(default)s)")
    parser.add_argument("--adapters", default="", help="comma list of LoRA adapters")
    options = parser.parse_args(arguments)
    try:
        serve(_config(options), options.ready_file)
    except (ValueError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"gir-chaos engine: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(f"gir-chaos engine: {error}\n")
        return 1
    return 0


def _config(options: argparse.Namespace) -> HostConfig:
    if options.config is not None:
        return load(options.config)
    pod = {
        "name": options.listen,
        "listen": options.listen,
        "model": options.model,
        "gpu": options.gpu,
        "slots": options.slots,
        "time_scale": options.time_scale,
        "dialect": options.dialect,
        "adapters": [name for name in options.adapters.split(",") if name],
    }
    return HostConfig(pods=(msgspec.convert(pod, PodConfig),))
