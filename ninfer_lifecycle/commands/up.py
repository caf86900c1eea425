"""`ninfer up | down | status | logs`: an engine that outlives the command which started it."""

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_lifecycle.commands import completing
from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.errors import ExitCode, NinferError, UsageError
from ninfer_lifecycle.hosts.base import EngineSpec, ExpectedIdentity, GoneError, Host, HostFacts, RunningEngine
from ninfer_lifecycle.hosts.choice import open_host, parse_kind
from ninfer_lifecycle.hosts.mounts import forget_keys
from ninfer_lifecycle.hosts.ownership import kept_labels
from ninfer_lifecycle.hosts.placing import client_of
from ninfer_lifecycle.hosts.readiness import identity_difference
from ninfer_lifecycle.hosts.state import STATE_FILE, EngineRecord, EngineState, default_state_dir
from ninfer_lifecycle.profiles.configuration import Configuration, build_configuration, configured_flags
from ninfer_lifecycle.profiles.loader import load_profile
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.qualify.identity import engine_tree_sha256
from ninfer_lifecycle.qualify.models import ensure_model
from ninfer_lifecycle.qualify.prepare import ResolvesImages, limits_of

StateDir = Annotated[Path | None, typer.Option("--state-dir", help="default: $XDG_STATE_HOME/ninfer")]
Name = Annotated[str | None, typer.Argument(help="the engine's name; needed when several are up", metavar="NAME",
                                             autocompletion=completing.engines)]


def up(
    profile_name: Annotated[str, typer.Argument(help="a profile's name or path", metavar="PROFILE",
                                              autocompletion=completing.profiles)],
    *,
    host: Annotated[str | None, typer.Option(help="process, docker or swarm; default: the profile's own",
                                                 autocompletion=completing.hosts)] = None,
    name: Annotated[str | None, typer.Option(help="name for down, status and logs; default: the profile's")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port on 127.0.0.1; 0: any free one")] = 0,
    models_dir: Annotated[Path, typer.Option(help="where the tiny model is kept")] = Path("models"),
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Start an engine, wait until it is ready and proven, and leave it running."""
    profile = load_profile(profile_name).profile
    directory = state_dir or default_state_dir()
    state, called = EngineState(directory), name or profile.name
    if re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", called) is None:
        raise UsageError(f"--name {called}: not a name", "small letters, digits, dots and dashes, such as tiny-2")
    with state.working_on(called), open_host(parse_kind(host, profile.host.kind)) as place:
        _clear_dead(state, called)
        spec, configuration = _spec(profile, place, name=called, port=port, models_dir=models_dir,
                                    directory=directory)
        engine = place.start(spec)
        state.put(EngineRecord(name=called, profile=profile.name, engine=engine,
                               configuration_sha256=configuration.identity_sha256,
                               stop_seconds=profile.host.stop_seconds))
        place.release(engine)
    if as_json:
        print_json({"name": called, "url": engine.base_url, "host": engine.kind,
                    "configurationSha256": configuration.identity_sha256, "apiKeyFile": str(spec.key_file)})
        return
    typer.echo(f"{called} is ready at {engine.base_url}\n"
               f"  configuration  {configuration.identity_sha256}\n"
               f"  API key        {spec.key_file}\n"
               f"  log            ninfer logs {called}\n"
               f"  stop it        ninfer down {called}")


def down(
    name: Name = None,
    every: Annotated[bool, typer.Option("--all", help="every engine that is up")] = False,
    grace: Annotated[float | None, typer.Option(help="seconds before it is killed; default: the profile's")] = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Stop an engine gracefully (its sessions are saved) and remove its container. Its store and log stay."""
    state, stopped = EngineState(state_dir or default_state_dir()), []
    for record in state.all() if every else (state.find(name),):
        with state.working_on(record.name), open_host(record.engine.kind) as place:
            facts = _put_away(place, record.engine, record.stop_seconds if grace is None else grace)
            state.drop(record.name)
        stopped.append({"name": record.name, "exitCode": facts.exit_code, "runDir": str(record.engine.spec.run_dir)})
        code = "" if facts.exit_code is None else f" (exit code {facts.exit_code})"
        if not as_json:
            typer.echo(f"{record.name} is down{code}; its log is in {record.engine.spec.run_dir}")
    if as_json:
        print_json(stopped)


def status(
    name: Name = None,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Show what is up and how it is. Exits with 1 when an engine is not ready, or is not what was started."""
    state = EngineState(state_dir or default_state_dir())
    records = state.all() if name is None else (state.find(name),)
    seen = [_look(record) for record in records]
    if as_json:
        print_json([one.document(record) for one, record in zip(seen, records, strict=True)])
    elif not records:
        typer.echo("no engine is up")
    else:
        for one, record in zip(seen, records, strict=True):
            typer.echo(f"{record.name}  {one.word}  {record.engine.kind}  {record.engine.base_url}  {one.detail}")
    if any(one.word != "ready" for one in seen):
        raise typer.Exit(int(ExitCode.FAILED))


def logs(
    name: Name = None,
    tail: Annotated[int, typer.Option(min=1, help="how many of the last lines")] = 200,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Print an engine's last lines."""
    record = EngineState(state_dir or default_state_dir()).find(name)
    with open_host(record.engine.kind) as place:
        text = place.logs(record.engine, tail).rstrip("\n")
    if as_json:
        print_json({"name": record.name, "lines": text.splitlines()})
    else:
        typer.echo(text)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at an engine told. word: ready, stopped, not answering, or changed."""

    word: str
    detail: str
    status: dict[str, Any] | None = None

    def document(self, record: EngineRecord) -> dict[str, Any]:
        """For --json."""
        return {"name": record.name, "profile": record.profile, "host": record.engine.kind,
                "url": record.engine.base_url, "state": self.word, "detail": self.detail, "status": self.status}


def _look(record: EngineRecord) -> Seen:
    engine = record.engine
    try:
        with open_host(engine.kind) as place:
            facts = place.inspect(engine)
        if not facts.running:
            code = "" if facts.exit_code is None else f" with exit code {facts.exit_code}"
            return Seen("stopped", f"it ended{code}; `ninfer logs {record.name}` says why, `ninfer down` removes it")
        with client_of(engine.spec, engine.base_url) as client:
            document = client.status()
    except NinferError as error:
        return Seen("not answering", error.message)
    shown = document.model_dump(mode="json")
    if difference := identity_difference(document, engine.spec.expected):
        return Seen("changed", difference, shown)
    cache, scheduler = document.cache, document.scheduler
    detail = (f"profile {record.profile}, {scheduler.running} running, {scheduler.waiting} waiting, "
              f"catalog {cache.private_catalog.occupied}/{cache.private_catalog.capacity}, "
              f"{scheduler.computed_prefill_tokens} tokens prefilled, {cache.reused_prompt_tokens} reused")
    return Seen("ready" if document.status == "ok" else "not answering", detail, shown)


def api_key(directory: Path, name: str) -> Path:
    """The key of an engine's name, made once: its store answers only to the key that it was written with."""
    key = directory / "keys" / f"{name}.key"
    if not key.exists():
        key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        key.touch(mode=0o600)
        key.write_text(secrets.token_urlsafe(32) + "\n", encoding="utf-8")
    return key


def _clear_dead(state: EngineState, name: str) -> None:
    """Refuse when an engine of this name runs; take away what is left of one that ended."""
    old = next((record for record in state.all() if record.name == name), None)
    if old is None:
        return
    with open_host(old.engine.kind) as place:
        if place.inspect(old.engine).running:
            raise AlreadyUpError(name, old.engine.base_url)
        _put_away(place, old.engine, 0.0)
    state.drop(name)


def _put_away(place: Host, engine: RunningEngine, grace_s: float) -> HostFacts:
    """Stop it and remove it. Of one that someone else removed, the copy of its key goes."""
    try:
        place.adopt(engine)
        facts = place.stop(engine, grace_s)
        place.cleanup()
    except GoneError:
        forget_keys(engine.spec.run_dir)
        return place.inspect(engine)
    return facts


class AlreadyUpError(NinferError):
    """An engine of this name runs already."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(f"{name} is up already, at {url}",
                         f"stop it with `ninfer down {name}`, or start another with --name")


def _spec(
    profile: Profile, place: Host, *, name: str, port: int, models_dir: Path, directory: Path
) -> tuple[EngineSpec, Configuration]:
    """Everything that the host needs. Effects: makes the run directory, the key, and the tiny model."""
    model = ensure_model(profile.model, models_dir.resolve())
    image = place.image_id(profile.image.reference) if isinstance(place, ResolvesImages) else None
    configuration = build_configuration(profile, model.sha256, image, None if image else engine_tree_sha256())
    run_id = f"{name}-{secrets.token_hex(4)}"
    run_dir = directory.resolve() / "runs" / run_id
    run_dir.mkdir(parents=True, mode=0o700)
    return EngineSpec(
        run_id=run_id, flags=configured_flags(profile, model.sha256), model_dir=model.path, run_dir=run_dir,
        expected=ExpectedIdentity(configuration.identity_sha256, model.sha256),
        store_dir=directory.resolve() / "stores" / name, key_file=api_key(directory.resolve(), name), image=image,
        limits=limits_of(profile.host), labels=kept_labels(directory / STATE_FILE),
        port=port, ready_s=profile.host.ready_seconds), configuration
