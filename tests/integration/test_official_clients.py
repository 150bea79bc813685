"""The official clients run against a whole fleet, unmodified: only the base URL and the key are ours."""

import urllib.error
import urllib.request
from collections.abc import Iterator

import anthropic
import openai
import pytest

from chaos.fleet import Fleet
from chaos.topology import demo

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("fleet")]
MODEL = "llama-70b"
ASK = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet.start(demo(time_scale=0.05)) as running:
        yield running


@pytest.fixture
def client(fleet: Fleet) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{fleet.router_url}/v1", api_key=fleet.api_key, max_retries=0) as made:
        yield made


def numbered(count: int) -> str:
    return "".join(f"tok-{number:04d} " for number in range(1, count + 1))


def test_models(client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert all(client.models.retrieve(name) == model for name, model in listed.items())
    with pytest.raises(openai.NotFoundError, match="is served by no cluster"):
        client.models.retrieve("org/none")
    assert MODEL in listed
    assert listed[MODEL].model_extra is not None
    assert "max_model_len" in listed[MODEL].model_extra, "fields of the engine's own list survive"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=7)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == numbered(7)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


def test_chat_stream(client: openai.OpenAI) -> None:
    with client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20, stream=True) as stream:  # type: ignore[arg-type]
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == numbered(20)
    assert all(chunk.usage is None for chunk in chunks), "usage was asked for on our account and must stay hidden"
    assert chunks[-1].choices[0].finish_reason == "length"


def test_stream_usage_when_asked_for(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=ASK,  # type: ignore[arg-type]
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


def test_completions_and_an_adapter(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="llama-70b-sql", prompt="select", max_tokens=3)
    assert answer.choices[0].text == numbered(3)
    text = "".join(
        chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="a", max_tokens=4, stream=True)
    )
    assert text == numbered(4)


def test_embeddings(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input=["a", "b"])
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.data[0].embedding


def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="hello", max_output_tokens=4)
    assert answer.output_text.strip() == numbered(4).strip()
    events = [
        event.type for event in client.responses.create(model=MODEL, input="hi", max_output_tokens=4, stream=True)
    ]
    assert events[-1] in ("response.completed", "response.incomplete")


def test_anthropic_messages(fleet: Fleet) -> None:
    with anthropic.Anthropic(base_url=fleet.router_url, api_key=fleet.api_key, max_retries=0) as client:
        answer = client.messages.create(model=MODEL, max_tokens=6, messages=ASK)  # type: ignore[arg-type]
        assert answer.content[0].type == "text"
        assert answer.content[0].text == numbered(6)
        assert answer.usage.output_tokens == 6
        with client.messages.stream(model=MODEL, max_tokens=6, messages=ASK) as stream:  # type: ignore[arg-type]
            assert "".join(stream.text_stream) == numbered(6)


def test_errors_are_the_clients_own_exceptions(client: openai.OpenAI, fleet: Fleet) -> None:
    with pytest.raises(openai.NotFoundError, match="gir: model 'nope' is served by no cluster"):
        client.chat.completions.create(model="nope", messages=ASK)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=10_000_000)  # type: ignore[arg-type]
    assert not str(caught.value).startswith("gir:"), "the engine's own words pass"
    with (
        openai.OpenAI(base_url=f"{fleet.router_url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError, match="gir: "),
    ):
        stranger.models.list()


def test_unknown_fields_reach_the_engine_byte_for_byte(fleet: Fleet) -> None:
    body = (
        b'{ "model" :"%b",\t"messages":[{"role":"user","content":"\\u00e9 caf\xc3\xa9"}] , "max_tokens": 1,'
        b'\n"x_unknown":{"deep":[1,2.50,1e3,{"z":null,"a":"\\/"}]},"metadata":{"model":"not me"}}'
    ) % MODEL.encode()
    request = urllib.request.Request(
        f"{fleet.router_url}/v1/chat/completions",
        data=body,
        headers={"authorization": f"Bearer {fleet.api_key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        cluster = fleet.cluster(answer.headers["x-gir-cluster"])
        pod = answer.headers["x-gir-pod"]
    seen = [_last_request(url) for url in cluster.describe()["pods"]]
    bodies = [item for item in seen if item == body]
    assert bodies, f"no pod of {cluster} ({pod}) saw exactly the bytes that were sent: {seen}"


def _last_request(pod_url: str) -> bytes:
    """Body of the pod's latest request; empty when it has had none."""
    try:
        with urllib.request.urlopen(f"{pod_url}/debug/last-request?raw=1") as answer:
            raw: bytes = answer.read()
            return raw
    except urllib.error.HTTPError:
        return b""
