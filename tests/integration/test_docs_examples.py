"""Every example of docs/api-examples.md, sent to a local fleet in the order of the page, is answered as printed."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from chaos.fleet import Fleet
from chaos.topology import KeyShape, demo
from tests.support.transcripts import Answer, Example, differences, examples, send

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api-examples.md"
EXAMPLES = list(examples(PAGE.read_text())) if PAGE.exists() else []
PROBED_S = 2.5
"""After so long every cluster has been probed, and shows it."""
_DEMO = demo(time_scale=0.05)
TOPOLOGY = msgspec.structs.replace(
    _DEMO,
    keys=(KeyShape(id="demo", tenant="demo"), KeyShape(id="tight", tenant="tight")),
    policy={
        **_DEMO.policy,
        "limits": [
            {"name": "per-tenant", "requests_per_min": 600, "tokens_per_min": 400_000},
            {"name": "trial", "tenant": "tight", "requests_per_min": 1},
        ],
    },
)
"""The demo's fleet with limits, one of them so tight that the second request meets it."""


def variables(fleet: Fleet) -> dict[str, str]:
    """What `$NAME` stands for on the page. Longer names first: they are replaced in this order."""
    agent = fleet.cluster("eu-reserved")
    return {
        "AGENT_ADMIN": agent.admin_url,
        "ADMIN": fleet.admin_url,
        "TIGHT_KEY": fleet.keys["tight"],
        "KEY": fleet.keys["demo"],
        "URL": fleet.router_url,
        "ID": "req-0",
    }


@pytest.fixture(scope="module")
def place() -> Iterator[dict[str, str]]:
    with Fleet.start(TOPOLOGY) as fleet:
        time.sleep(PROBED_S)
        yield variables(fleet)


def test_the_page_is_answered_as_it_says(place: dict[str, str]) -> None:
    assert len(EXAMPLES) > 30
    wrong: dict[str, list[str]] = {}
    for example in EXAMPLES:
        answer = send(example.command, place)
        place["ID"] = answer.headers.get("x-request-id", place["ID"])
        if found := differences(example, answer):
            wrong[example.command] = found
    assert not wrong


@pytest.mark.parametrize(
    ("kind", "printed", "body"),
    [
        ("json", '{"a": 1, "b": 2}', '{"a": 1}'),
        ("json", '{"a": 1}', '{"a": 1, "b": 2}'),
        ("json", '{"a": "x", "...": "..."}', '{"a": "y", "b": 2}'),
        ("json", '{"a": ["x", "..."]}', '{"a": []}'),
        ("json", '{"a": true}', '{"a": false}'),
        ("json", '{"a": "1"}', '{"a": 1}'),
        ("text", "data: [DONE]\n", 'data: {"error": 1}\n'),
        ("text", 'data: {"a": "x"}\n\ndata: [DONE]\n', "data: [DONE]\n"),
        ("http", 'HTTP/1.1 201 Created\n\n{"a": 1}', '{"a": 1}'),
        ("http", 'HTTP/1.1 200 OK\nx-a: b\n\n{"a": 1}', '{"a": 1}'),
    ],
)
def test_a_page_that_is_wrong_is_noticed(kind: str, printed: str, body: str) -> None:
    assert differences(Example("curl", kind, printed), Answer(200, "OK", {}, body))


def test_every_endpoint_of_the_reference_has_an_example() -> None:
    reference = (PAGE.parent / "api.md").read_text()
    paths = set(
        re.findall(r"(?<=[`, ])(/(?:v1|admin)/[a-z]+(?:/completions)?|/healthz|/readyz|/tokenize)\b", reference)
    )
    shown = " ".join(example.command for example in EXAMPLES)
    assert len(paths) > 15
    assert not {path for path in paths if path not in shown}
