"""docs/api.md says what the code does: every error row, every admin route, every relayed path."""

import re
from pathlib import Path

from gir.model.errors import ErrorKind
from gir.model.request import Api
from gir.wire import headers as names
from gir.wire.openai import api_of

ROOT = Path(__file__).resolve().parents[2]
DOC = (ROOT / "docs" / "api.md").read_text()


def test_every_error_row_is_listed() -> None:
    listed = set(re.findall(r"^\| (\d{3}) \| `(\w+)` \| `(\w+)` \|$", DOC, re.MULTILINE))
    assert listed == {(str(kind.value.status), kind.value.code, kind.value.type) for kind in ErrorKind}


def test_every_admin_route_is_listed() -> None:
    routes = {
        path
        for source in (ROOT / "gir" / "admin").glob("*.py")
        for path in re.findall(r'web\.(?:get|post|put|delete)\("(/admin/[a-z]+)', source.read_text())
    }
    assert len(routes) > 5
    missing = [route for route in routes if route not in DOC]
    assert not missing


def test_every_listed_path_is_relayed() -> None:
    table = DOC[DOC.index("| method and path | API |") : DOC.index("Bodies go on")]
    paths = [path for path in re.findall(r"`(?:POST )?(/[\w/]+)`", table) if path != "/v1/models"]
    assert len(paths) >= 8
    assert all(api_of(path) not in (None, Api.OTHER) for path in paths)


def test_every_header_a_caller_may_set_is_listed() -> None:
    for name in (
        names.SESSION,
        names.DEADLINE_MS,
        names.CRITICALITY,
        names.CLUSTER_PIN,
        names.CANARY,
        names.TRACEPARENT,
    ):
        assert f"`{name.decode()}`" in DOC
