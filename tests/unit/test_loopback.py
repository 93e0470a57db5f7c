"""Tests use no network but loopback."""

from __future__ import annotations

import socket

import pytest


def test_a_connection_to_any_other_machine_is_refused() -> None:
    with socket.socket() as other, pytest.raises(RuntimeError, match="loopback"):
        other.connect(("192.0.2.1", 80))
