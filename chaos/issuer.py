"""A token issuer on loopback: signs tokens, publishes keys, and fails in every way an issuer can.

It runs in a thread of the drill's own process, so that a drill can change its mind between two requests.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from gir.clock import SystemClock

ISSUER = "https://login.drill"
AUDIENCE = "gir"
SLOW_MAX_S = 30.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    issuer: "Issuer"


class Issuer:
    """Keys by name; `published` says which of them are told. `mode` is `ok`, `error` (500) or `slow`."""

    def __init__(self, *kids: str) -> None:
        self._keys = {kid: rsa.generate_private_key(public_exponent=65_537, key_size=2_048) for kid in kids}
        self.published: tuple[str, ...] = kids[:1]
        self.mode = "ok"
        self.delay_s = 3.0
        self.fetches: list[float] = []
        """Moments (monotonic) at which keys were asked for, answered or not."""
        self.clock = SystemClock()
        self._woken = threading.Event()
        self._server: _Server | None = None
        self._number = 0
        self.port = 0

    @property
    def url(self) -> str:
        """Where the keys are published."""
        return f"http://127.0.0.1:{self.port}/keys"

    def settings(self) -> dict[str, Any]:
        """This issuer as an entry of `auth.jwt`."""
        return {"issuer": ISSUER, "audiences": [AUDIENCE], "jwks_url": self.url}

    def token(self, kid: str, *, tenant: str, signed_by: str | None = None) -> str:
        """A fresh token, unlike every earlier one, good for a day. It claims `kid`, whoever signs it."""
        self._number += 1
        now_s = int(self.clock.wall_s())
        claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "drill", "tenant": tenant, "jti": str(self._number)}
        key = self._keys[signed_by or kid]
        return jwt.encode({**claims, "iat": now_s, "exp": now_s + 86_400}, key, algorithm="RS256", headers={"kid": kid})

    def start(self) -> None:
        """Listen, on the old port if it had one. Safe to call twice."""
        if self._server is not None:
            return
        self._woken.clear()
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.issuer = self
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="issuer", daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on. Safe to call twice."""
        if self._server is not None:
            self._woken.set()
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self) -> tuple[int, bytes]:
        """Status and body for whoever asks now."""
        self.fetches.append(self.clock.monotonic_s())
        if self.mode == "slow":
            self._woken.wait(min(self.delay_s, SLOW_MAX_S))
        if self.mode == "error":
            return 500, b"out of order"
        cards = []
        for kid in self.published:
            card = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self._keys[kid].public_key()))
            cards.append({**card, "kid": kid, "alg": "RS256", "use": "sig"})
        return 200, json.dumps({"keys": cards}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        status, body = self.server.issuer.answer()
        try:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            self.close_connection = True  # whoever asked has given up waiting

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Say nothing."""
