"""`ninfer profile list | validate | show | lock | diff`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_engine.contract.base import canonical_json
from ninfer_lifecycle.commands import completing
from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.errors import ExitCode, NinferError
from ninfer_lifecycle.profiles.configuration import ProfileLock
from ninfer_lifecycle.profiles.differences import differences
from ninfer_lifecycle.profiles.loader import list_profiles, load_profile
from ninfer_lifecycle.profiles.locking import (
    is_lock_file,
    lock_profile,
    locked_as,
    parts_of_lock,
    read_profile_lock,
)
from ninfer_lifecycle.profiles.schema import Profile
from ninfer_lifecycle.receipts.store import write_atomic

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
Name = Annotated[str, typer.Argument(help="a profile's name, or the path of a YAML file", metavar="PROFILE",
                                      autocompletion=completing.profiles)]


@app.command("list")
def list_command(
    as_json: Json = False,
) -> None:
    """List the profiles in ./profiles and those that come with the tool."""
    rows: list[dict[str, Any]] = []
    for entry in list_profiles():
        row: dict[str, Any] = {"name": entry.name, "path": str(entry.path)}
        try:
            profile = load_profile(str(entry.path)).profile
            row |= {"host": profile.host.kind, "lane": profile.lane, "description": profile.description}
        except NinferError:
            row |= {"host": "", "lane": "", "description": f"broken: `ninfer profile validate {entry.path}` says how"}
        if entry.shadowed_by is not None:
            row["description"] += f" (not used by name: {entry.shadowed_by} comes first)"
        rows.append(row)
    if as_json:
        print_json(rows)
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        typer.echo(f"{row['name']:<{width}}  {row['host']:<7}  {row['description']}")


@app.command("validate")
def validate(
    names: Annotated[list[str] | None, typer.Argument(help="profiles; none: all on the search path",
                                                       autocompletion=completing.profiles)] = None,
    as_json: Json = False,
) -> None:
    """Check profiles; every problem is printed with its file, line and column. Exits with 2 when there is one."""
    found: list[dict[str, Any]] = []
    for name in names or [str(entry.path) for entry in list_profiles()]:
        try:
            loaded = load_profile(name)
        except NinferError as error:
            found.append({"profile": name, "valid": False, "problems": error.message.split("\n")})
            typer.echo(f"{name}: not valid\n{error}", err=True)
            continue
        parents = "".join(f", extends {file.stem}" for file in loaded.files[1:])
        found.append({"profile": loaded.profile.name, "valid": True, "files": [str(file) for file in loaded.files]})
        if not as_json:
            typer.echo(f"{loaded.profile.name}: valid ({loaded.files[0]}{parents})")
    if as_json:
        print_json(found)
    if not all(one["valid"] for one in found):
        raise typer.Exit(int(ExitCode.USAGE))


@app.command("show")
def show(
    name: Name,
    defaults: Annotated[bool, typer.Option(help="also flags that the profile leaves as they are")] = False,
    as_json: Json = False,
) -> None:
    """Print a profile with its parents merged in; it is JSON with and without --json. Sizes are in bytes, cpus in
    thousandths.
    """
    value = shown(load_profile(name).profile, defaults)
    if as_json:
        print_json(value)
    else:
        typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


@app.command("lock")
def lock(
    name: Name,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="file; none: standard output")] = None,
    host: Annotated[str | None, typer.Option(help="process, docker or swarm; none: the profile's own")] = None,
    models_dir: Annotated[Path, typer.Option(help="where the tiny model is kept")] = Path("models"),
    as_json: Json = False,
) -> None:
    """Write the lock document: configuration, probe plan and gates, every part by digest. The subject of a receipt."""
    document = locked(load_profile(name).profile, host, models_dir)
    if output is None:
        typer.echo(document.canonical().decode(), nl=False)
        return
    write_atomic(output, document.canonical())
    if as_json:
        print_json({"file": str(output), "configurationSha256": document.configuration_sha256,
                    "lockSha256": document.sha256, "parts": parts_of_lock(document)})
        return
    typer.echo(f"{output}: configuration {document.configuration_sha256}, lock {document.sha256}", err=True)


@app.command("diff")
def diff(
    left: Annotated[str, typer.Argument(help="a profile or a lock file", autocompletion=completing.profiles)],
    right: Annotated[str, typer.Argument(help="a profile or a lock file", autocompletion=completing.profiles)],
    as_json: Json = False,
) -> None:
    """Show what differs between two profiles, two lock files, or a profile and a lock file. Exits with 1 when something
    does. Beside a lock, a profile is taken on the lock's own image, model and engine.
    """
    lines = differences(_comparable(left, beside=right), _comparable(right, beside=left))
    if as_json:
        print_json({"left": left, "right": right, "differences": lines})
    else:
        for line in lines:
            typer.echo(line)
    if lines:
        raise typer.Exit(int(ExitCode.FAILED))


def shown(profile: Profile, defaults: bool) -> dict[str, Any]:
    """A profile as JSON, under the keys of its YAML."""
    value = profile.model_dump(mode="json", by_alias=True, exclude_none=True)
    value["flags"] = profile.flags.model_dump(mode="json") if defaults else profile.flags_set()
    return value


def locked(profile: Profile, host: str | None, models_dir: Path) -> ProfileLock:
    """The lock of a profile as it would run here. Effects: makes the tiny model when it is not there."""
    from ninfer_lifecycle.hosts.choice import open_host, parse_kind  # noqa: PLC0415  # docker loads only when needed
    from ninfer_lifecycle.qualify.identity import engine_tree_sha256  # noqa: PLC0415
    from ninfer_lifecycle.qualify.models import ensure_model  # noqa: PLC0415

    image = None
    if parse_kind(host, profile.host.kind) != "process":
        with open_host("docker") as place:
            image = place.image_id(profile.image.reference)
    model = ensure_model(profile.model, models_dir)
    return lock_profile(profile, model.sha256, image, None if image else engine_tree_sha256())


def _comparable(name: str, beside: str) -> dict[str, Any]:
    """A lock file's content; a profile with every default, or beside a lock file what its lock would be."""
    if is_lock_file(name):
        return read_profile_lock(Path(name)).model_dump(mode="json")
    profile = load_profile(name).profile
    if is_lock_file(beside):
        return locked_as(profile, read_profile_lock(Path(beside))).model_dump(mode="json")
    value = shown(profile, defaults=True)
    canonical_json(value)  # what is compared holds no floats, so equal text is equal value
    return value
