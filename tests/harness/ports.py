"""Ports that nobody else is handed while a test holds them."""

from __future__ import annotations

import socket


class Port:
    """A free port of 127.0.0.1, held until `release`.

    The socket is bound and never listens. The kernel hands its port to nobody, but a server that binds it by number
    with SO_REUSEADDR, as gunicorn and the JVM do, may listen there - again and again, after each of its deaths.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        self._socket.close()
