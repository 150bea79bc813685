"""Write the Python stubs of `proto/gir/v1` into `gir/wire/v1`, or say which differ.

`python -m gir.wire.regenerate` writes; `generate(target)` writes elsewhere, for the test that compares.
"""

import importlib.resources
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROTO = ROOT / "proto"
STUBS = ROOT / "gir" / "wire" / "v1"


def generate(target: Path) -> list[Path]:
    """Run protoc; write `*_pb2.py`, `*_pb2.pyi` and `*_pb2_grpc.py` into `target`; return their paths, sorted.

    The protos live in package `gir.v1` on the wire; the stubs live in `gir.wire.v1` in Python, so protoc is run on a
    copy under that path. Raises RuntimeError with protoc's exit code when it fails.
    """
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = Path(scratch_name)
        source = scratch / "in" / "gir" / "wire" / "v1"
        source.mkdir(parents=True)
        for proto in sorted((PROTO / "gir" / "v1").glob("*.proto")):
            shutil.copy(proto, source / proto.name)
        out = scratch / "out"
        out.mkdir()
        well_known = importlib.resources.files("grpc_tools") / "_proto"
        code = protoc.main(
            [
                "protoc",
                f"-I{scratch / 'in'}",
                f"-I{well_known}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                *(str(path) for path in sorted(source.glob("*.proto"))),
            ]
        )
        if code != 0:
            raise RuntimeError(f"protoc ended with exit code {code}; its message is above")
        target.mkdir(parents=True, exist_ok=True)
        written = []
        for stub in sorted((out / "gir" / "wire" / "v1").iterdir()):
            shutil.copy(stub, target / stub.name)
            written.append(target / stub.name)
    return written


if __name__ == "__main__":
    for path in generate(STUBS):
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
