"""`ninfer report prometheus | junit | github | notes | rules | grafana`: receipts for machines, and what watches them.

Every one verifies what it is given. A file that does not verify is told of as such, and the command exits with 1.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ninfer_lifecycle.commands import options
from ninfer_lifecycle.commands.actions import append_summary, summary_file
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.errors import ExitCode, UsageError
from ninfer_lifecycle.receipts.store import write_atomic
from ninfer_lifecycle.receipts.trust import Role
from ninfer_lifecycle.reports.github import annotations, summary
from ninfer_lifecycle.reports.junit import junit
from ninfer_lifecycle.reports.looked import Looked, Refused, Verified, look_at
from ninfer_lifecycle.reports.notes import release_notes
from ninfer_lifecycle.reports.prometheus import exposition, write_textfile
from ninfer_lifecycle.reports.rules import DATA

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)

Receipts = Annotated[list[Path] | None, typer.Argument(help="receipts, or folders of them; none: receipts/",
                                                       metavar="[RECEIPT]")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="file, replaced in one step; none: standard output")]
OutDir = Annotated[Path, typer.Option("--out", "-o", help="folder; made where it is not there")]


@app.command("prometheus")
def prometheus_command(
    receipts: Receipts = None, out: Out = None, key: options.Keys = None, keyring: options.KeyringPath = None,
    root: options.Roots = None, as_json: Json = False,
) -> None:
    """Metrics of the newest receipt of each profile and lane, for node-exporter's textfile folder (--out X.prom)."""
    if out is not None and out.suffix != ".prom":
        raise UsageError(f"--out {out}: node-exporter reads only *.prom", f"Write {out.with_suffix('.prom')}.")
    seen, now = _look(receipts, key, keyring, root), options.now()
    _deliver(seen, exposition(seen, now), out, write_textfile, as_json=as_json)


@app.command("junit")
def junit_command(
    receipts: Receipts = None, out: Out = None, key: options.Keys = None, keyring: options.KeyringPath = None,
    root: options.Roots = None, as_json: Json = False,
) -> None:
    """JUnit XML: a check that failed is a failure, an inconclusive one an error, and so is a file that is refused."""
    seen = _look(receipts, key, keyring, root)
    _deliver(seen, junit(seen), out, write_atomic, as_json=as_json)


@app.command("github")
def github_command(
    receipts: Receipts = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file that the job summary is appended to; none: "
                                                                  "$GITHUB_STEP_SUMMARY, else standard output")] = None,
    key: options.Keys = None, keyring: options.KeyringPath = None, root: options.Roots = None, as_json: Json = False,
) -> None:
    """Annotations on standard output, and the job summary, in a step of GitHub Actions."""
    seen = _look(receipts, key, keyring, root)
    notes, target = annotations(seen), out or summary_file()
    if target is not None:
        append_summary(target, lambda budget: summary(seen, budget))
    if as_json:
        print_json({**_document(seen), "out": None if target is None else str(target), "annotations": [
            {"level": note.level, "title": note.title, "message": note.message} for note in notes]})
    else:
        for note in notes:
            typer.echo(note.command())
        if target is None:
            typer.echo(summary(seen), nl=False)
    _finish(seen)


@app.command("notes")
def notes_command(
    before: Annotated[Path, typer.Argument(help="receipt of what runs now", metavar="BEFORE")],
    after: Annotated[Path, typer.Argument(help="receipt of what is to be released", metavar="AFTER")],
    out: Out = None, key: options.Keys = None, keyring: options.KeyringPath = None, root: options.Roots = None,
    as_json: Json = False,
) -> None:
    """Release notes in Markdown: what changed in configuration, checks and walls between two receipts."""
    seen = _look([before, after], key, keyring, root)
    verified = [item for item in seen if isinstance(item, Verified)]
    if len(seen) != 2:
        raise UsageError("notes compare two receipts", "Give two receipt files, the older one first.")
    text = release_notes(*verified).encode() if len(verified) == 2 else b""
    _deliver(seen, text, out if text else None, write_atomic, as_json=as_json)


@app.command("rules")
def rules_command(out: OutDir = Path("deploy/prometheus"), as_json: Json = False) -> None:
    """Write alert and recording rules for Prometheus, and an example of a scrape configuration."""
    _install(sorted(DATA.glob("*.yaml")), DATA, out, as_json=as_json)


@app.command("grafana")
def grafana_command(out: OutDir = Path("deploy/grafana"), as_json: Json = False) -> None:
    """Write Grafana dashboards of receipts and of engines, with the files that provision them."""
    base = DATA / "grafana"
    _install(sorted(path for path in base.rglob("*") if path.is_file()), base, out, as_json=as_json)


def _look(receipts: Sequence[Path] | None, key: list[Path] | None, keyring: Path | None,
          root: list[Path] | None) -> tuple[Looked, ...]:
    now = options.now()
    trust = options.trust_source(key, keyring, root).load(Role.QUALIFIER, now)
    return tuple(look_at(receipts or [Path("receipts")], trust, now))


def _deliver(seen: Sequence[Looked], text: bytes, out: Path | None, write: Callable[[Path, bytes], None], *,
             as_json: bool) -> None:
    """Write the text to its file, or print it; with --json print what was looked at, and the text where it has no file.

    Raises UsageError where the file cannot be written.
    """
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write(out, text)
        except OSError as error:
            raise UsageError(f"{out}: {error.strerror}", "Give a file that can be written.") from None
    if as_json:
        print_json({**_document(seen), **({"text": text.decode()} if out is None else {"out": str(out)})})
    elif out is None:
        typer.echo(text.decode(), nl=False)
    else:
        typer.echo(f"{out}: {sum(isinstance(item, Verified) for item in seen)} of {len(seen)} files verified", err=True)
    _finish(seen)


def _document(seen: Sequence[Looked]) -> dict[str, object]:
    return {
        "receipts": [{"file": item.file, "profile": item.facts.profile, "lane": item.facts.lane,
                      "sequence": item.facts.sequence, "result": item.facts.result,
                      "payloadSha256": item.facts.payload_sha256} for item in seen if isinstance(item, Verified)],
        "refused": [{"file": item.file, "step": item.step, "detail": item.detail, "advice": item.advice}
                    for item in seen if isinstance(item, Refused)],
    }


def _finish(seen: Sequence[Looked]) -> None:
    """Say what was refused, on stderr; exit with 1 when something was. The verdict is the gate's to act upon."""
    refused = [item for item in seen if isinstance(item, Refused)]
    for item in refused:
        typer.echo(plain(f"{item.file} is refused at step '{item.step}': {item.detail}"), err=True)
        if item.advice:
            typer.echo(f"  {item.advice}", err=True)
    if refused:
        raise typer.Exit(int(ExitCode.FAILED))


def _install(files: Sequence[Path], base: Path, out: Path, *, as_json: bool) -> None:
    written = []
    try:
        for file in files:
            target = out / file.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            written.append(str(target))
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}", "Give another folder: --out DIR") from None
    if as_json:
        print_json({"files": written})
    else:
        typer.echo("\n".join(written))
