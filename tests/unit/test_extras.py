"""What comes with an extra is imported by whoever uses it, and by nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

VENDORS = ("google.adk", "google.genai")


def python(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout


def test_legato_alone_imports_no_vendors_sdk() -> None:
    code = "import sys, legato, legato.app, legato.cli, legato.demo, legato.http.asgi, legato.http.flask\n"
    assert python(f"{code}print([name for name in {VENDORS} if name in sys.modules])") == "[]\n"


@pytest.mark.parametrize(
    ("module", "vendor", "extra"),
    [("legato.agents.adk", "google.adk", "adk"), ("legato.models.gemini", "google.genai", "gemini")],
)
def test_what_an_extra_is_missing_for_says_how_to_install_it(module: str, vendor: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{vendor!r}] = None\ntry: import {module}\nexcept ImportError as wrong: print(wrong)"
    )
    assert f"pip install 'legato[{extra}]'" in python(code)
