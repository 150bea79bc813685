"""Beats over TLS: the router proves itself, and with a client authority configured so must the agent."""

from pathlib import Path

import pytest
import trustme

from gir.wire.beat_transport import channel_credentials, server_credentials
from tests.integration.test_beats_stream import until
from tests.support.beats import Router, agent


class Files:
    """Certificates on disk, as an operator has them."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.ca = folder / "ca.pem"
        authority.cert_pem.write_to_path(self.ca)
        for name in ("router", "agent"):
            pair = authority.issue_cert("127.0.0.1", f"{name}.example")
            pair.private_key_pem.write_to_path(folder / f"{name}.key")
            (folder / f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in pair.cert_chain_pems))
        self.router = (folder / "router.pem", folder / "router.key")
        self.agent = (folder / "agent.pem", folder / "agent.key")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


async def test_beats_arrive_over_tls(files: Files) -> None:
    router = Router()
    client = agent(
        [await router.start(0, server_credentials(*files.router))], credentials=channel_credentials(files.ca)
    )
    client.start()
    await until(lambda: "beat" in router.sink.kinds())
    await client.close()
    await router.server.close(0)


@pytest.mark.parametrize("trusting", [True, False])
async def test_an_agent_that_speaks_or_trusts_the_wrong_thing_is_not_connected(files: Files, trusting: bool) -> None:
    router = Router()
    stranger = channel_credentials(None) if trusting else None
    client = agent([await router.start(0, server_credentials(*files.router))], credentials=stranger)
    client.start()
    await until(lambda: "unavailable" in client.state()[0].error)
    assert router.sink.calls == []
    await client.close()
    await router.server.close(0)


async def test_with_a_client_authority_the_agent_needs_a_certificate(files: Files) -> None:
    router = Router()
    address = await router.start(0, server_credentials(*files.router, files.ca))
    bare = agent([address], credentials=channel_credentials(files.ca))
    bare.start()
    await until(lambda: "unavailable" in bare.state()[0].error)
    await bare.close()
    assert router.sink.calls == []
    proven = agent([address], credentials=channel_credentials(files.ca, *files.agent))
    proven.start()
    await until(lambda: "beat" in router.sink.kinds())
    await proven.close()
    await router.server.close(0)


def test_an_unreadable_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing\.pem"):
        channel_credentials(tmp_path / "missing.pem")
