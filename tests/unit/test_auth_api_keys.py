"""API keys: in the configuration, in a file, on the command line; hashed everywhere, shown once."""

import argparse
import hashlib
import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gir.auth.authenticator import Authenticator
from gir.auth.credentials import credential_of, new_secret
from gir.auth.keyring import KeyRing, KeysFile, read_keys, write_keys
from gir.auth.principal import ANONYMOUS
from gir.auth.settings import AuthSettings
from gir.cli import keys_cmd
from gir.clock import ManualClock
from gir.model.errors import ErrorKind, RequestError
from gir.model.ids import ModelId, TenantId
from gir.model.policy import TenantPolicy
from gir.model.request import Criticality
from gir.tasks import TaskSet
from tests.support.issuing import key_record

CLOCK = ManualClock()
NOW_S = CLOCK.wall_s()
NOW = datetime.fromtimestamp(NOW_S, UTC)


def gate(made: AuthSettings, *tenants: TenantPolicy) -> Authenticator:
    return Authenticator(made, clock=CLOCK, tasks=TaskSet(lambda *_: None), tenants=tenants)


def refusal(authenticator: Authenticator, credential: bytes | None, now_s: float = NOW_S) -> RequestError:
    with pytest.raises(RequestError) as caught:
        authenticator.known(credential, now_s)
    assert caught.value.kind is ErrorKind.UNAUTHENTICATED
    return caught.value


def gir_keys(*args: str) -> int:
    parser = argparse.ArgumentParser()
    keys_cmd.add_arguments(parser)
    return keys_cmd.run(parser.parse_args(args), CLOCK)


def test_a_key_tells_who_asks() -> None:
    record = key_record("gir_secret", models=(ModelId("llama"),), criticality_max="standard", trusted=True)
    principal = gate(AuthSettings(api_keys=(record,))).known(b"gir_secret", NOW_S)
    assert principal is not None
    assert (principal.tenant, principal.key_id, principal.trusted) == ("acme", "ci", True)
    assert principal.models_allowed == {"llama"}
    assert principal.criticality_max is Criticality.STANDARD


@pytest.mark.parametrize("credential", [None, b"", b"gir_secre", b"gir_secret ", b"x" * 9_000, b"\xff\x00"])
def test_anything_else_is_refused(credential: bytes | None) -> None:
    authenticator = gate(AuthSettings(api_keys=(key_record("gir_secret"),)))
    error = refusal(authenticator, credential)
    assert "gir_secre" not in error.message


def test_without_keys_nobody_gets_in_unless_it_is_spelled_out() -> None:
    refusal(gate(AuthSettings()), b"anything")
    assert gate(AuthSettings(insecure_no_auth=True)).known(None, NOW_S) is ANONYMOUS


def test_expired_and_revoked_keys_are_refused() -> None:
    soon = NOW + timedelta(seconds=10)
    for fields in ({"expires_at": soon}, {"revoked_at": soon}):
        authenticator = gate(AuthSettings(api_keys=(key_record("gir_secret", **fields),)))
        assert authenticator.known(b"gir_secret", NOW_S) is not None
        assert "ci" in refusal(authenticator, b"gir_secret", NOW_S + 10).message


def test_a_key_never_allows_more_than_its_tenant_may() -> None:
    policy = TenantPolicy(id=TenantId("acme"), models=(ModelId("llama"),), criticality_max="sheddable")
    record = key_record("gir_secret", models=(ModelId("qwen"), ModelId("llama")))
    principal = gate(AuthSettings(api_keys=(record,)), policy).known(b"gir_secret", NOW_S)
    assert principal is not None
    assert principal.models_allowed == {"llama"}
    assert principal.criticality_max is principal.criticality_default is Criticality.SHEDDABLE


def test_a_tenant_never_lends_a_key_more_than_the_key_may() -> None:
    policy = TenantPolicy(id=TenantId("acme"), models=(ModelId("llama"), ModelId("qwen")), regions=("eu", "us"))
    record = key_record("gir_secret", models=(ModelId("llama"),), regions=("eu", "asia"), criticality_max="sheddable")
    principal = gate(AuthSettings(api_keys=(record,)), policy).known(b"gir_secret", NOW_S)
    assert principal is not None
    assert principal.models_allowed == {"llama"}
    assert principal.regions_allowed == {"eu"}
    assert principal.criticality_max is Criticality.SHEDDABLE


@pytest.mark.parametrize(
    ("first", "second"), [({"id": "a"}, {"id": "a", "key_sha256": "0" * 64}), ({"id": "a"}, {"id": "b"})]
)
def test_two_keys_that_shadow_each_other_are_refused(first: dict[str, str], second: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="listed twice"):
        KeyRing([key_record("gir_secret", **first), key_record("gir_secret", **second)], {})


def test_secrets_are_long_random_and_recognisable() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    assert all(secret.startswith("gir_") and len(secret) >= 47 for secret in secrets)


@pytest.mark.parametrize(
    ("authorization", "api_key", "expected"),
    [
        (b"Bearer k", None, b"k"),
        (b"bearer  k ", None, b"k"),
        (None, b"k", b"k"),
        (b"Bearer k", b"k", b"k"),
        (None, None, None),
        (None, b"", None),
    ],
)
def test_where_a_credential_may_stand(
    authorization: bytes | None, api_key: bytes | None, expected: bytes | None
) -> None:
    assert credential_of(authorization, api_key) == expected


@pytest.mark.parametrize(
    ("authorization", "api_key"), [(b"Basic dTpw", None), (b"Bearer", None), (b"Bearer a", b"b"), (b"", None)]
)
def test_where_it_may_not(authorization: bytes, api_key: bytes | None) -> None:
    with pytest.raises(RequestError):
        credential_of(authorization, api_key)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    authenticator = gate(AuthSettings(api_keys=(key_record("gir_fixed", id="fixed"),), api_keys_file=str(path)))
    refusal(authenticator, b"gir_secret")
    write_keys(path, KeysFile(keys=(key_record("gir_secret"),)))
    authenticator.reload_keys()
    assert authenticator.known(b"gir_secret", NOW_S) is not None
    path.write_text('{"keys": [')
    authenticator.reload_keys()
    assert authenticator.known(b"gir_secret", NOW_S) is not None
    write_keys(path, KeysFile())
    authenticator.reload_keys()
    refusal(authenticator, b"gir_secret")
    assert authenticator.known(b"gir_fixed", NOW_S) is not None


def test_a_broken_file_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": [{"id": "x"}]}')
    with pytest.raises(ValueError, match=r"keys.json"):
        gate(AuthSettings(api_keys_file=str(path)))


def test_create_list_revoke(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    assert gir_keys("create", "--file", str(path), "--id", "ci", "--tenant", "acme", "--expires-in", "2d") == 0
    secret = capsys.readouterr().out.strip()
    authenticator = gate(AuthSettings(api_keys_file=str(path)))
    assert authenticator.known(secret.encode(), NOW_S) is not None
    refusal(authenticator, secret.encode(), NOW_S + 2 * 86_400)
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600

    assert gir_keys("create", "--file", str(path), "--id", "ci", "--tenant", "other") == 1
    assert gir_keys("list", "--file", str(path), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["keys"]
    assert (row["id"], row["tenant"], row["state"]) == ("ci", "acme", "valid")

    assert gir_keys("revoke", "--file", str(path), "--id", "ci") == 0
    authenticator.reload_keys()
    refusal(authenticator, secret.encode())
    assert gir_keys("list", "--file", str(path)) == 0
    assert "revoked" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("create", "--id", "a", "--tenant", "t"), 2),
        (("create", "--file", "F", "--tenant", "t"), 2),
        (("create", "--file", "F", "--id", "a"), 2),
        (("create", "--file", "F", "--id", "a", "--tenant", "t", "--expires-in", "tomorrow"), 2),
        (("revoke", "--file", "F", "--id", "absent"), 1),
        (("list", "--file", "/nowhere/at/all/keys.json"), 0),
        (("create", "--file", "/nowhere/keys.json", "--id", "a", "--tenant", "t"), 1),
    ],
)
def test_wrong_usage_ends_with_its_code(
    args: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GIR_KEYS_FILE", raising=False)
    assert gir_keys(*(str(tmp_path / "keys.json") if arg == "F" else arg for arg in args)) == code


def test_operators_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    codes: list[int] = []

    def create(number: int) -> None:
        codes.append(gir_keys("create", "--file", str(path), "--id", f"k{number}", "--tenant", "t", "--json"))

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 8
    assert len(read_keys(path).keys) == 8
    assert os.listdir(tmp_path) == ["keys.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.json"
    write_keys(path, KeysFile(keys=(key_record("gir_secret"),)))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_keys(path, KeysFile())
    assert len(read_keys(path).keys) == 1
    assert os.listdir(tmp_path) == ["keys.json"]


def test_nothing_that_is_printed_holds_a_secret(tmp_path: Path) -> None:
    secret = "gir_planted-secret"
    authenticator = gate(AuthSettings(api_keys=(key_record("gir_other"),)))
    shown = [repr(authenticator), str(authenticator.rows()), repr(key_record(secret))]
    shown += [str(refusal(authenticator, one.encode())) for one in (secret, f"{secret}x", f"eyJ.{secret}.x")]
    assert not any("planted" in text for text in shown)
    assert hashlib.sha256(secret.encode()).hexdigest() not in repr(authenticator)
