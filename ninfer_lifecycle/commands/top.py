"""`ninfer top`: a running engine at a glance, from its status document, again and again."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.client import EngineClient
from ninfer_lifecycle.commands import completing
from ninfer_lifecycle.commands.output import Json
from ninfer_lifecycle.commands.top_screen import Sample, screen
from ninfer_lifecycle.errors import EngineError, UsageError
from ninfer_lifecycle.hosts.placing import client_of, read_key
from ninfer_lifecycle.hosts.state import EngineState, default_state_dir


def top(
    name: Annotated[str | None, typer.Argument(help="the engine's name; needed when several are up",
                                               metavar="[NAME]", autocompletion=completing.engines)] = None,
    base_url: Annotated[str | None, typer.Option(help="an engine that `ninfer up` did not start, as "
                                                      "http://127.0.0.1:8080")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="key of the engine at --base-url")] = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="seconds between two looks")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="look once and end")] = False,
    as_json: Json = False,
    state_dir: Annotated[Path | None, typer.Option("--state-dir", help="default: $XDG_STATE_HOME/ninfer")] = None,
) -> None:
    """Load, pools, reuse and misses of a running engine. --json prints a status document a line; Ctrl-C ends it."""
    if base_url is not None and name is not None:
        raise UsageError("both a name and --base-url are given", "Give one of them.")
    with _client(name, base_url, api_key_file, state_dir) as client:
        if as_json:
            _stream(client, interval, once=once)
            return
        console = Console(highlight=False)
        if once or not console.is_terminal:
            console.print(screen(client.base_url, [_look(client)]))
            return
        _watch(client, console, interval)


def _client(name: str | None, base_url: str | None, api_key_file: Path | None, state_dir: Path | None) -> EngineClient:
    if base_url is not None:
        return EngineClient(base_url, None if api_key_file is None else read_key(api_key_file))
    engine = EngineState(state_dir or default_state_dir()).find(name).engine
    return client_of(engine.spec, engine.base_url)


def _look(client: EngineClient) -> Sample:
    return Sample(time.monotonic(), client.status())


def _stream(client: EngineClient, interval: float, *, once: bool) -> None:
    """One status document a line, as JSON."""
    while True:
        document: StatusDocument = client.status()
        typer.echo(document.model_dump_json())
        if once:
            return
        time.sleep(interval)


def _watch(client: EngineClient, console: Console, interval: float) -> None:
    """Until it is interrupted. An engine that stops answering is said to, and looked for again."""
    samples: list[Sample] = []
    trouble = ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            try:
                samples = [*samples[-119:], _look(client)]
                trouble = ""
            except EngineError as error:
                trouble = error.message
                if not samples:
                    raise
            live.update(screen(client.base_url, samples, trouble), refresh=True)
            time.sleep(interval)
