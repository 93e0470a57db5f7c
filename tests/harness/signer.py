"""Real keys and real tokens, of somebody who signs as Google does."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from jwt.algorithms import RSAAlgorithm

PROJECT, NUMBER = "p-one", "123456789"


class Signer:
    """One RSA key, published under `name`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    @cached_property
    def certificate(self) -> str:
        """X.509, in PEM."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "securetoken.system.gserviceaccount.com")])
        made = x509.CertificateBuilder(subject, subject, self.key.public_key(), 1, *_validity())
        return made.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    @property
    def jwk(self) -> dict[str, Any]:
        fields = json.loads(RSAAlgorithm.to_jwk(self.key.public_key()))
        return {"kty": "RSA", "n": fields["n"], "e": fields["e"], "use": "sig", "alg": "RS256", "kid": self.name}

    def sign(self, claims: dict[str, Any], **header: Any) -> str:
        """A JWT of those claims, RS256; a `header` field that is None is left out."""
        fields = {"kid": self.name, **header}
        return jwt.encode(claims, self.key, "RS256", {k: v for k, v in fields.items() if v is not None})

    def id_token(self, **changes: Any) -> str:
        return self.sign(id_claims(**changes))

    def app_token(self, **changes: Any) -> str:
        return self.sign(app_claims(**changes))


def _validity() -> tuple[datetime, datetime]:
    return datetime.now(UTC) - timedelta(days=1), datetime.now(UTC) + timedelta(days=1)


def seconds(ahead: float = 0) -> int:
    """Since 1970."""
    return int(time.time() + ahead)


class Ahead(NamedTuple):
    """A time to put into claims: that of their making, and so many seconds."""

    seconds: float


def _changed(claims: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """With `changes`; what is None is left out."""
    named = {**claims, **changes}.items()
    times = {name: seconds(value.seconds) for name, value in named if isinstance(value, Ahead)}
    return {name: times.get(name, value) for name, value in named if value is not None}


def id_claims(uid: str = "ann", **changes: Any) -> dict[str, Any]:
    """Of a Firebase ID token of PROJECT that was made a minute ago, and counts for an hour."""
    made = seconds(-60)
    claims = {"iss": f"https://securetoken.google.com/{PROJECT}", "aud": PROJECT, "sub": uid, "user_id": uid}
    times = {"auth_time": made, "iat": made, "exp": made + 3600}
    return _changed({**claims, **times, "firebase": {"sign_in_provider": "custom", "identities": {}}}, changes)


def app_claims(**changes: Any) -> dict[str, Any]:
    """Of an App Check token likewise."""
    made = seconds(-60)
    claims = {"iss": f"https://firebaseappcheck.googleapis.com/{NUMBER}", "sub": "1:123456789:web:abc"}
    return _changed(
        {**claims, "aud": [f"projects/{NUMBER}", f"projects/{PROJECT}"], "iat": made, "exp": made + 3600}, changes
    )


def unsigned(claims: dict[str, Any], **header: Any) -> str:
    """As the Firebase emulator makes them."""
    return jwt.encode(claims, "", "none", header)
