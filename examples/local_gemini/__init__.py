"""A Gemini on this machine: the vendor's wire format without a key, for the examples and the tests.

It plays what the user's text tells it to, as `legato.models.scripted` does, or frames that were written down; it
refuses what the real service refuses, and fails in the ways that the real one fails in where `befall` says so.
"""

from local_gemini.script import Frame, Wrong
from local_gemini.server import Answer, LocalGemini, Seen

__all__ = ["Answer", "Frame", "LocalGemini", "Seen", "Wrong"]
