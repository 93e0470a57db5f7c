"""All settings, read once from the environment (`LEGATO_...`). A bad value stops the start with its name."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from legato.errors import SettingsError

Seconds = Annotated[float, Field(gt=0, le=30 * 86400)]
Bytes = Annotated[int, Field(gt=0)]
Limit = Annotated[int, Field(ge=0)]
"""0 is no limit."""
KEY_BYTES = 32
RESEMBLES = 0.85
"""From 0 to 1: how alike a name must be to that of a setting to be taken for a slip of the pen."""
_ATTRIBUTE = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


def _journal(value: str) -> str:
    url = urlsplit(value)
    if re.fullmatch(r"sqlite:///[^?#]+", value):
        return value
    if url.scheme == "firestore" and url.netloc and re.fullmatch(r"/[A-Za-z0-9()_-]+", url.path):
        return value
    raise ValueError("expected firestore://PROJECT/DATABASE or sqlite:///PATH")


def _auth(value: str) -> str:
    known = r"dev|firebase:[a-z][a-z0-9-]{2,28}[a-z0-9]|(?!firebase:)" + _ATTRIBUTE
    if not re.fullmatch(known, value):
        raise ValueError("expected dev, firebase:PROJECT or MODULE:ATTRIBUTE")
    return value


def _app_check(value: str) -> str:
    if not re.fullmatch(r"off|[0-9]{1,20}", value, re.ASCII):
        raise ValueError("expected off, or the project's number")
    return value


def _agent(value: str) -> str:
    if not re.fullmatch(_ATTRIBUTE, value):
        raise ValueError("expected MODULE:ATTRIBUTE")
    return value


def _credentials(value: str) -> str:
    return _agent(value) if value else value


def origin_pattern(origin: str) -> re.Pattern[str]:
    """What an entry of `origins` matches. One `*` may stand in its first label, for letters, digits and hyphens there:
    `https://*.example.com`, `https://my-app--*.web.app`. Raises ValueError when `origin` is no origin."""
    default = re.fullmatch(r"http:.*:80|https:.*:443", origin)
    if default or not re.fullmatch(rf"https?://{_HOST}(:[0-9]{{1,5}})?", origin):
        raise ValueError(
            "expected origins as browsers send them, in lower case, without path or default port, separated by spaces, "
            f"such as https://app.example.com or https://app--*.web.app; got {origin!r}"
        )
    return re.compile(re.escape(origin).replace(r"\*", "[a-z0-9-]+"))


_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_WILD = r"[a-z0-9-]*\*[a-z0-9-]*"
_HOST = rf"({_LABEL}(\.{_LABEL})*|{_WILD}(\.{_LABEL}){{2,}}|\[[0-9a-f:]+\])"


def _origins(value: str) -> str:
    for origin in value.split():
        origin_pattern(origin)
    return value


def keys_of(text: str) -> tuple[bytes, ...]:
    """The keys of LEGATO_CREDENTIAL_KEYS. Raises ValueError, which says nothing of them."""
    return tuple(_key(number, word) for number, word in enumerate(text.split(), 1))


def _key(number: int, word: str) -> bytes:
    try:
        key = b64decode(word.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        told = f"expected keys of {KEY_BYTES} bytes as base64, separated by spaces; number {number} is none"
        raise ValueError(f"{told}. This makes one: openssl rand -base64 {KEY_BYTES}")
    return key


def _keys(value: SecretStr) -> SecretStr:
    keys_of(value.get_secret_value())
    return value


class Settings(BaseSettings):
    """Times are seconds, sizes are bytes of UTF-8 JSON; none may be more than a document or a Commit can hold."""

    model_config = SettingsConfigDict(env_prefix="LEGATO_", frozen=True, extra="ignore")

    journal: Annotated[str, AfterValidator(_journal)] = "sqlite:///.legato/journal.sqlite"
    auth: Annotated[str, AfterValidator(_auth)] = "dev"
    app_check: Annotated[str, AfterValidator(_app_check)] = "off"
    agent: Annotated[str, AfterValidator(_agent)] = "legato.demo:agent"
    credentials: Annotated[str, AfterValidator(_credentials)] = ""
    credential_keys: Annotated[SecretStr, AfterValidator(_keys)] = SecretStr("")
    origins: Annotated[str, NoDecode, AfterValidator(_origins)] = ""
    emulator: Annotated[str, Field(validation_alias="FIRESTORE_EMULATOR_HOST")] = ""
    auth_emulator: Annotated[str, Field(validation_alias="FIREBASE_AUTH_EMULATOR_HOST")] = ""
    k_service: Annotated[str, Field(validation_alias="K_SERVICE")] = ""

    ping: Seconds = 8
    flush: Seconds = 0.5
    lease: Seconds = 15
    ttl: Annotated[float, Field(ge=2 * 3600, le=30 * 86400)] = 86400
    retention: Seconds = 30 * 86400
    deadline: Seconds = 3300
    auth_check: Annotated[float, Field(ge=0, le=86400)] = 0
    approval: Annotated[float, Field(gt=0, le=14 * 86400)] = 86400
    model_retries: Annotated[int, Field(ge=0, le=10)] = 2
    sweep_turns: Annotated[int, Field(gt=0, le=1000)] = 20
    sweep_seconds: Annotated[float, Field(gt=0, le=1700)] = 240
    partial: Literal["keep", "discard"] = "keep"
    drain: Annotated[float, Field(ge=0, le=6)] = 5

    turns_active: Limit = 20
    streams_open: Limit = 100
    turns_per_minute: Limit = 60

    input_bytes: Annotated[int, Field(gt=0, le=256 * 1024)] = 256 * 1024
    text_bytes: Annotated[int, Field(gt=0, le=512 * 1024)] = 512 * 1024
    result_bytes: Annotated[int, Field(gt=0, le=2 * 1024 * 1024)] = 2 * 1024 * 1024
    body_bytes: Bytes = 1024 * 1024
    flush_bytes: Bytes = 32 * 1024
    pending_bytes: Bytes = 256 * 1024
    pending_seconds: Seconds = 5
    feed_bytes: Bytes = 1024 * 1024
    ahead_bytes: Bytes = 64 * 1024
    hold_back_seconds: Seconds = 30
    turn_seconds: Seconds = 6 * 3600


def read_settings() -> Settings:
    """Reads the environment. Raises SettingsError with the variable's name and what was expected.

    The platform sets `K_SERVICE`: there the laptop's `dev` identity is refused, and so is the emulator's.
    """
    try:
        settings = Settings()
    except ValidationError as wrong:
        lines = [_wrong(str(e["loc"][0]), e["input"], e["msg"]) for e in wrong.errors()]
        raise SettingsError("; ".join(lines)) from None
    if lines := [*_misspelled(os.environ), *_contradictions(settings)]:
        raise SettingsError("; ".join(lines))
    if settings.auth == "dev" and settings.k_service:
        raise SettingsError("LEGATO_AUTH='dev': anyone could be anyone; it is refused where K_SERVICE is set")
    if settings.auth_emulator and settings.k_service:
        raise SettingsError(
            "FIREBASE_AUTH_EMULATOR_HOST: its tokens are not signed; it is refused where K_SERVICE is set"
        )
    return settings


def _wrong(field: str, value: Any, message: str) -> str:
    """A line that names the setting; a secret is not repeated."""
    known = Settings.model_fields.get(field.lower())
    shown = "" if known and known.annotation is SecretStr else f"={value!r}"
    return f"LEGATO_{field.upper()}{shown}: {message.removeprefix('Value error, ')}"


_LESS = (
    ("flush", "pending_seconds"),
    ("flush_bytes", "pending_bytes"),
    ("ping", "deadline"),
    ("lease", "turn_seconds"),
    ("hold_back_seconds", "turn_seconds"),
    ("turn_seconds", "retention"),
    ("approval", "retention"),
)
"""The first of two must be less than the second: else the one would always come first, and the other mean nothing."""


def _contradictions(settings: Settings) -> Iterator[str]:
    for one, other in _LESS:
        small, large = getattr(settings, one), getattr(settings, other)
        if small >= large:
            yield f"{_named(one)}={small:g}: expected less than {_named(other)}, which is {large:g}"
    if settings.turn_seconds > settings.ttl / 2:
        most = f"{settings.ttl / 2:g}, half of LEGATO_TTL, so that no event expires in mid-turn"
        yield f"{_named('turn_seconds')}={settings.turn_seconds:g}: expected at most {most}"


def _misspelled(names: Iterable[str]) -> Iterator[str]:
    """Of the names that are no setting's those that resemble one; others may mean something to somebody else."""
    known = [_named(name) for name, field in Settings.model_fields.items() if field.validation_alias is None]
    for name in names:
        upper = name.upper()
        near = get_close_matches(upper, known, 1, RESEMBLES) if upper.startswith("LEGATO_") else []
        if near and near[0] != upper:
            yield f"{name}: there is no such setting; did you mean {near[0]}?"


def _named(field: str) -> str:
    return f"LEGATO_{field.upper()}"
