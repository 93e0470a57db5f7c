"""Real processes, real sockets, real signals: what the tests start, cut, stop and kill."""

from harness.caller import Answer, Caller
from harness.emulator import Emulator, find_emulator
from harness.gemini import gemini_at
from harness.ports import Port
from harness.proxy import TcpProxy
from harness.server import Face, Server
from harness.stuck import Stuck

__all__ = ["Answer", "Caller", "Emulator", "Face", "Port", "Server", "Stuck", "TcpProxy", "find_emulator", "gemini_at"]
