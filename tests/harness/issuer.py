"""Google's token endpoint and a service that takes its tokens, as one server on this machine."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Self
from urllib.parse import parse_qs

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth import jwt
from google.auth.crypt import RSASigner

SECRET = "vendors-secret"
"""What the endpoint says when it refuses, beside its error code."""


@cache
def key() -> str:
    """A service account's private key."""
    made = rsa.generate_private_key(65537, 2048)
    return made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Issuer:
    """`POST /token` gives `token-1`, `token-2` ... for `life` seconds each, or what `refusal` says; `/api` takes those
    that still count, but for those `revoked`, and answers 401 to all others. `grants` and `requests` are what came.

    While `open` is not set whoever asks for a token stands; `reached` tells that somebody has.
    """

    def __init__(self, life: float = 3600) -> None:
        self.life = life
        self.refusal: str | None = None
        self.revoked: set[str] = set()
        self.grants: list[dict[str, str]] = []
        self.requests: list[tuple[str, bytes]] = []
        self.open, self.reached = Event(), Event()
        self.open.set()
        self._expiries: dict[str, float] = {}
        self._lock = Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def account(self) -> dict[str, str]:
        """A service account's key, as its JSON file has it."""
        return {
            "type": "service_account",
            "client_email": "tool@demo.iam.gserviceaccount.com",
            "private_key": key(),
            "token_uri": f"{self.url}/token",
        }

    def shown(self) -> list[str]:
        """The tokens that `/api` was shown, in order."""
        return [token for token, _ in self.requests]

    def grant(self, asked: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        self.reached.set()
        self.open.wait(30)
        with self._lock:
            self.grants.append(dict(asked))
            token = f"token-{len(self.grants)}"
            self._expiries[token] = time.time() + self.life
        if self.refusal:
            return 400, {"error": self.refusal, "error_description": SECRET}
        given = {"access_token": token, "expires_in": self.life, "token_type": "Bearer"}
        if audience := _claims(asked).get("target_audience"):
            expiry = int(time.time() + self.life)
            made = jwt.encode(RSASigner.from_string(key()), {"aud": audience, "exp": expiry})
            given["id_token"] = made.decode()
        return 200, given

    def serve(self, token: str, body: bytes) -> int:
        with self._lock:
            self.requests.append((token, body))
            counts = time.time() < self._expiries.get(token, 0) and token not in self.revoked
        return 200 if counts else 401

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self._server.shutdown()
        self._server.server_close()


def _claims(asked: Mapping[str, str]) -> dict[str, Any]:
    """What a service account asserts."""
    return jwt.decode(asked["assertion"], verify=False) if "assertion" in asked else {}


def _handler(issuer: Issuer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self._body()
            if self.path == "/token":
                asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
                self._answer(*issuer.grant(asked))
            else:
                shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
                status = issuer.serve(shown, body)
                self._answer(status, {"status": status})

        do_GET = do_POST  # noqa: N815

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _answer(self, status: int, content: Mapping[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
