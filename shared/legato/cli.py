"""The command line: `legato dev`, `chat`, `journal`, `sweep`, `demo`."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote
from uuid import uuid4

import click
import httpx
from rich.console import Console

from legato.client import FileStore, LegatoClient
from legato.dev.keys import kept_key, key_file
from legato.dev.supervisor import CannotStart, Dev
from legato.errors import LegatoError, SettingsError
from legato.events import ID_PATTERN
from legato.journal import SessionKey
from legato.settings import Settings, read_settings
from legato.terminal.chat import Chat
from legato.terminal.history import rows, stored, table
from legato.terminal.lines import Lines
from legato.terminal.screen import Screen
from legato.terminal.showcase import SESSION, TOKEN, showcase

if TYPE_CHECKING:
    from legato.sweeper import Sweeper, Swept

FAILED, WRONG, STOPPED = 1, 2, 130
STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DEMO_SECONDS: Final = 60.0
LEASE_SECONDS: Final = 4.0
"""The laptop's LEGATO_LEASE: somebody watches, and nothing freezes a worker for long."""
PIPE_WIDTH: Final = 240
KEYS: Final = "LEGATO_CREDENTIAL_KEYS"
JOURNAL: Final[str] = Settings.model_fields["journal"].default


def _checked_url(context: click.Context, option: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", value):
        raise click.BadParameter("expected http://HOST:PORT or https://HOST")
    return value.rstrip("/")


def _checked_id(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch(ID_PATTERN, value):
        raise click.BadParameter("expected 1 to 64 letters, digits, '_' or '-', the first a letter or a digit")
    return value


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="legato")
def main() -> None:
    """An agent's turn that cannot be lost."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


@main.command()
@click.option("--instances", type=click.IntRange(1, 32), default=2, help="Worker processes behind the port.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="0 takes a free one.")
@click.option("--journal", metavar="URL", help="sqlite:///PATH or firestore://PROJECT/DATABASE  [LEGATO_JOURNAL]")
@click.option("--agent", metavar="MODULE:ATTRIBUTE", help="The agent to serve  [LEGATO_AGENT]")
def dev(instances: int, port: int, journal: str | None, agent: str | None) -> None:
    """Serve an agent here, from several processes over one journal."""
    asked = {"LEGATO_JOURNAL": journal, "LEGATO_AGENT": agent}
    env = {
        "LEGATO_LEASE": f"{LEASE_SECONDS:g}",
        **os.environ,
        **{name: value for name, value in asked.items() if value is not None},
    }
    keyed, problem = _keyed(env)
    _run(_serve(port, instances, keyed, problem), stopped=0)


def _keyed(env: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """With a key to keep with what users supply, unless it names its own; and why there can be none."""
    if env.get(KEYS):
        return env, None
    file = key_file(env.get("LEGATO_JOURNAL", JOURNAL))
    try:
        return {**env, KEYS: kept_key(file)}, None
    except OSError as wrong:
        return env, f"What users supply is not kept: {file}: {wrong.strerror}. Set {KEYS}."


async def _serve(port: int, instances: int, env: Mapping[str, str], problem: str | None) -> None:
    async with Dev(port, instances, env, _say) as running:
        about = running.workers[0].about
        _say(f"Legato serves {about['agent']} at {running.url}")
        _say(f"Workers: {', '.join(str(worker.pid) for worker in running.workers)}. Journal: {about['journal']}")
        _say(f"Kill one of them: another goes on with its turns within {about['lease']:g} s (LEGATO_LEASE).")
        if problem:
            _say(problem)
        developers = about["auth"] == "dev"
        _say(f"Try:   {_curl(running.url, TOKEN if developers else '$TOKEN')}")
        _say(f"Talk:  legato chat --url {running.url}" + ("" if developers else ' --token "$TOKEN"'))
        _say("Stop:  Ctrl-C")
        await asyncio.Event().wait()


def _curl(url: str, token: str) -> str:
    return (
        f'curl -N {url}/v1/sessions/hello/turns -H "Authorization: Bearer {token}" '
        """-H 'Content-Type: application/json' -d '{"input": "/say 20 5"}'"""
    )


@main.command()
@click.option("--url", default="http://127.0.0.1:8080", callback=_checked_url, help="Where the gateway is.")
@click.option("--session", callback=_checked_id, help="The session to go on with; without it a new one.")
@click.option("--token", default=TOKEN, help="The bearer token; for `legato dev` it is dev:NAME.")
def chat(url: str, session: str | None, token: str) -> None:
    """Talk to an agent; whichever side is killed, no turn is lost."""
    _run(_chat(url, session or f"s_{uuid4().hex[:8]}", token), stopped=STOPPED)


async def _chat(url: str, session: str, token: str) -> None:
    screen = Screen(Console())
    async with _client(url, token, _store(_state_directory(url, token, os.environ))) as client:
        talk = Chat(client, session, screen, Lines(0), echo=not sys.stdin.isatty())
        screen.line(f"Session {session} at {url}. Ctrl-C cancels a running turn, Ctrl-D leaves.", "dim")
        try:
            await _talking(talk, go_on=True)
        finally:
            if talk.met:
                screen.line(f"To come back: legato chat --url {url} --session {session}", "dim")


async def _talking(talk: Chat, *, go_on: bool) -> None:
    """SIGINT cancels the running turn, and leaves when there is none or it was asked before."""
    task = asyncio.current_task()
    assert task
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: talk.interrupt() or task.cancel())
    if go_on:
        await talk.go_on()
    await talk.talk()


def _client(url: str, token: str, store: FileStore | None) -> LegatoClient:
    """A proxy that the environment names stands before other machines, never before this one."""
    here = httpx.URL(url).host in {"127.0.0.1", "localhost", "::1"}
    return LegatoClient(url, token, store, httpx.AsyncClient(trust_env=not here))


def _state_directory(url: str, token: str, env: Mapping[str, str]) -> Path:
    """One directory for each principal of each service; XDG Base Directory Specification."""
    base = env.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "legato" / hashlib.sha256(f"{url}\0{token}".encode()).hexdigest()[:16]


def _store(directory: Path) -> FileStore:
    store = FileStore(directory)
    try:
        store.check()
    except OSError as wrong:
        why = f"the chat's state cannot be kept in {directory} ({wrong.strerror})"
        raise SettingsError(f"{why}; set XDG_STATE_HOME to a directory that can be written") from wrong
    return store


@main.command()
@click.argument("session", callback=_checked_id)
@click.option("--journal", metavar="URL", help="sqlite:///PATH or firestore://PROJECT/DATABASE  [LEGATO_JOURNAL]")
@click.option("--user", default="me", callback=_checked_id, help="Whose session it is.")
def journal(session: str, journal: str | None, user: str) -> None:
    """Show what the journal holds of a session, as a table."""
    if journal is not None:
        os.environ["LEGATO_JOURNAL"] = journal
    _run(_journal(SessionKey(user, session)), stopped=STOPPED)


async def _journal(key: SessionKey) -> None:
    from legato import app  # noqa: PLC0415 - the stores take longer to load than the other commands to run

    settings = read_settings()
    _require_file(settings.journal)
    store = app.open_journal(settings)
    try:
        standing, segments = await stored(store, key, app.now())
    finally:
        await store.close()
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    with console.capture() as drawn:
        console.print(table(list(rows(standing, segments))))
    for line in drawn.get().removesuffix("\n").split("\n"):
        _say(line.rstrip())


def _require_file(url: str) -> None:
    """Looking must not create what is looked for."""
    path = url.removeprefix("sqlite:///")
    if path != url and not os.path.exists(unquote(path)):
        raise SettingsError(f"LEGATO_JOURNAL={url!r}: there is no such file")


@main.command()
@click.option(
    "--every", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Sweep again and again, this far apart."
)
@click.option("--journal", metavar="URL", help="sqlite:///PATH or firestore://PROJECT/DATABASE  [LEGATO_JOURNAL]")
@click.option("--agent", metavar="MODULE:ATTRIBUTE", help="The agent whose turns they are  [LEGATO_AGENT]")
def sweep(every: float | None, journal: str | None, agent: str | None) -> None:
    """Go on with turns that nobody owns; says what became of them as a line of JSON."""
    asked = {"LEGATO_JOURNAL": journal, "LEGATO_AGENT": agent}
    os.environ.update({name: value for name, value in asked.items() if value is not None})
    if not os.environ.get(KEYS) and (file := key_file(os.environ.get("LEGATO_JOURNAL", JOURNAL))).exists():
        os.environ[KEYS] = kept_key(file)
    _run(_sweep(every), stopped=STOPPED if every is None else 0)


async def _sweep(every: float | None) -> None:
    from legato import app  # noqa: PLC0415 - as above

    settings = read_settings()
    _require_file(settings.journal)
    built = app.build(settings)
    try:
        if every is None:
            _say_swept(await built.sweeper.sweep())
        else:
            await _sweep_again(built.sweeper, every)
    finally:
        await built.drain()
        await built.close()


async def _sweep_again(sweeper: Sweeper, every: float) -> None:
    while True:
        try:
            _say_swept(await sweeper.sweep())
        except LegatoError as failure:
            click.echo(f"legato: {failure}", err=True)
        await asyncio.sleep(every)


def _say_swept(swept: Swept) -> None:
    _say(json.dumps(swept.figures()))


@main.command()
def demo() -> None:
    """Cut a turn in mid-sentence, kill its owner while a tool runs, answer what it asks: it stays one turn."""
    _run(_demo(interactive=sys.stdin.isatty() and sys.stdout.isatty()), stopped=STOPPED)


async def _demo(*, interactive: bool) -> None:
    screen = Screen(Console())
    with tempfile.TemporaryDirectory(prefix="legato-demo-") as directory:
        ledger = Path(directory) / "ledger.jsonl"
        ours = {
            "LEGATO_JOURNAL": f"sqlite:///{directory}/journal.sqlite",
            "LEGATO_DEMO_LEDGER": str(ledger),
            "LEGATO_LEASE": f"{LEASE_SECONDS:g}",
        }
        env = {name: value for name, value in os.environ.items() if not name.startswith(("LEGATO_", "K_SERVICE"))}
        keyed, _ = _keyed({**env, **ours})
        async with Dev(0, 2, keyed, screen.line) as running:
            screen.line(f"{len(running.workers)} instances behind {running.url}, one journal.")
            async with asyncio.timeout(DEMO_SECONDS):
                await showcase(running.url, ledger, running.kill, LEASE_SECONDS, screen)
            if interactive:
                with suppress(asyncio.CancelledError):  # however the chat is left, the demo has done its work
                    await _go_on(running.url, screen)
                screen.end_line()


async def _go_on(url: str, screen: Screen) -> None:
    screen.line(
        '\nNow you, in the same session. Any words, or /say 50 10, /tool slow {"seconds": 5}, /tool wire {"amount": 5},'
        ' /tool mail {"to": "ann"}',
        "bold",
    )
    screen.line("Ctrl-C cancels a running turn, Ctrl-D leaves and ends the instances.", "dim")
    async with _client(url, TOKEN, None) as client:
        await _talking(Chat(client, SESSION, screen, Lines(0), echo=False), go_on=False)


def _say(line: str) -> None:
    """The terminal may be gone, and what is said to it with it; what runs goes on until it is told to stop."""
    with suppress(OSError):
        click.echo(line)


def _run(work: Coroutine[Any, Any, None], stopped: int) -> None:
    """Runs `work` until it ends, or a signal of STOPS that this process does not ignore cancels it."""
    try:
        asyncio.run(_stoppable(work))
    except asyncio.CancelledError:
        sys.exit(stopped)
    except (LegatoError, httpx.HTTPError, OSError) as wrong:
        click.echo(f"legato: {' '.join(str(wrong).split()) or type(wrong).__name__}", err=True)
        sys.exit(WRONG if isinstance(wrong, CannotStart | SettingsError) else FAILED)


async def _stoppable(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.current_task()
    assert task
    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await work
