"""Planted secrets: nothing a router writes, exports or answers may hold any of them."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.issuing import RSA_KEYS, document, token
from tests.support.redis_server import free_port

PLANTED = {
    name: f"planted-{name}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    for name in ("api-key", "wrong-key", "admin", "agent", "redis", "prompt", "claim", "basic", "header")
}


def send(url: str, *, body: dict | None = None, **headers: str) -> str:
    """One request; status line, headers and body of whatever comes back, as text."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data=data, headers={"content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(asked, timeout=10.0) as answer:
            return f"{answer.status} {answer.headers} {answer.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.headers} {error.read().decode()}"


class RouterProcess:
    """`gir serve` with a secret in every place that takes one."""

    def __init__(self, directory: Path) -> None:
        self.port, self.admin, self.beats = free_port(), free_port(), free_port()
        self.log = directory / "log"
        (directory / "keys.json").write_bytes(document("one"))
        hashed = {name: hashlib.sha256(PLANTED[name].encode()).hexdigest() for name in ("api-key", "admin")}
        config = {
            "listen": f"127.0.0.1:{self.port}",
            "admin": {
                "listen": f"127.0.0.1:{self.admin}",
                "tokens": [{"id": "op", "token_sha256": hashed["admin"], "role": "operator"}],
            },
            "beats": {"listen": f"127.0.0.1:{self.beats}"},
            "auth": {
                "api_keys": [{"id": "ci", "key_sha256": hashed["api-key"], "tenant": "acme"}],
                "jwt": [{"issuer": "https://login.example", "audiences": ["gir"], "jwks_file": "keys.json"}],
            },
            "agents": [{"cluster": "eu-1", "token": {"env": "PLANTED_AGENT"}}],
            "store": {"kind": "redis", "url": {"env": "PLANTED_REDIS"}},
            "telemetry": {"log_level": "debug"},
            "policy": {"limits": [{"name": "team", "requests_per_min": 6}]},
            "drain": {"listen_s": 0, "finish_s": 1},
        }
        path = directory / "router.yaml"
        path.write_text(json.dumps(config), encoding="utf-8")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gir.cli.main", "serve", "-c", str(path)],
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PLANTED_AGENT": PLANTED["agent"],
                    "PLANTED_REDIS": f"redis://:{PLANTED['redis']}@127.0.0.1:{free_port()}",
                },
            )

    def until_up(self) -> None:
        ends_s = time.perf_counter() + 30.0
        while time.perf_counter() < ends_s:
            assert self.process.poll() is None, self.log.read_text()
            try:
                send(f"http://127.0.0.1:{self.admin}/healthz")
            except OSError:
                time.sleep(0.05)
            else:
                return
        pytest.fail("the router did not come up")

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@pytest.mark.slow
def test_planted_secrets_appear_nowhere(tmp_path: Path) -> None:
    router = RouterProcess(tmp_path)
    seen: list[str] = []
    now_s = time.time()
    chat = {"model": "llama", "messages": [{"role": "user", "content": PLANTED["prompt"]}]}
    bearer = {
        "good key": f"Bearer {PLANTED['api-key']}",
        "wrong key": f"Bearer {PLANTED['wrong-key']}",
        "basic": f"Basic {PLANTED['basic']}",
        "good token": f"Bearer {token(now_s, note=PLANTED['claim']).decode()}",
        "forged": f"Bearer {token(now_s, note=PLANTED['claim'], key=RSA_KEYS['two']).decode()}",
        "no JWT": f"Bearer eyJ{PLANTED['claim'].replace('-', '')}.{PLANTED['wrong-key']}.x",
    }
    try:
        router.until_up()
        data, admin = f"http://127.0.0.1:{router.port}/v1", f"http://127.0.0.1:{router.admin}"
        for authorization in bearer.values():
            for _ in range(4):
                headers = {"authorization": authorization, "x-secret": PLANTED["header"]}
                seen.append(send(f"{data}/chat/completions", body=chat, **headers))
        seen.append(send(f"{data}/models", **{"x-api-key": PLANTED["wrong-key"]}))
        seen.append(
            send(
                f"{data}/chat/completions", body={"model": 1, "x": PLANTED["prompt"]}, authorization=bearer["good key"]
            )
        )
        for path in ("metrics", "admin/config", "admin/limits", "admin/usage", "admin/clusters", "admin/models"):
            seen.append(send(f"{admin}/{path}", authorization=f"Bearer {PLANTED['admin']}"))
            seen.append(send(f"{admin}/{path}", authorization=f"Bearer {PLANTED['wrong-key']}"))
    finally:
        router.stop()
    seen.append(router.log.read_text(encoding="utf-8"))
    everything = "\n".join(seen)
    # The test must have reached the places where secrets are handled.
    for reached in ("invalid_api_key", "no cluster has reported yet", "limit store", "gir_requests_total"):
        assert reached in everything, f"{reached} was not reached"
    for name, secret in PLANTED.items():
        assert secret not in everything, (
            f"{name} leaked: ...{everything[max(0, everything.index(secret) - 200) :][:300]}..."
        )
    signatures = [value.rsplit(".", 1)[-1] for value in bearer.values() if value.count(".") == 2]
    assert not any(len(signature) > 20 and signature in everything for signature in signatures)
