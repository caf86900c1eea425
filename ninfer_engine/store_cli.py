"""`ninfer-engine store ...`: look after a durable store by hand. Findings on standard output, prose on standard error.

Exit codes: 0 done and whole, 1 damage was found or a session cannot be used, 2 wrong usage or the store cannot be had.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_engine.memory.store.archive import ArchiveResult, archive_fingerprint, export_session, import_session
from ninfer_engine.memory.store.durable import DurableStore
from ninfer_engine.memory.store.errors import (
    ArchiveError,
    GenerationError,
    SessionMissingError,
    StoreCorruptError,
    StoreError,
    StoreIncompatibleError,
)
from ninfer_engine.memory.store.origin import OriginKey
from ninfer_engine.memory.store.upkeep import repair as repair_store
from ninfer_engine.memory.store.upkeep import verify as verify_store

EXIT_DAMAGED = 1
EXIT_USAGE = 2

store_app = typer.Typer(no_args_is_help=True, help="Look after a durable store: list, verify, collect, move, repair.")

Directory = Annotated[Path, typer.Argument(help="directory of the store (--session-checkpoint-dir)",
                                           show_default=False)]
Session = Annotated[str, typer.Argument(help="the session: 64 hex digits, or the first few of them",
                                        show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="print a JSON object")]
KeyFile = Annotated[Path | None, typer.Option("--api-key-file", help="file with the API key that signs records")]
Quota = Annotated[int, typer.Option("--quota-mib", min=1, help="size limit of the store, in MiB")]
Force = Annotated[bool, typer.Option("--force", help="also over a stored generation that is as new or newer")]


class UsageError(Exception):
    """The command cannot be carried out as given; the message says what to change."""


@store_app.command("ls")
def ls(directory: Directory, as_json: AsJson = False, api_key_file: KeyFile = None) -> None:
    """List the stored sessions with their state, largest first."""
    with _speaking(), _existing(directory, api_key_file) as store:
        rows = [_row(store, fingerprint, session) for session, fingerprint in _sessions(store)]
        rows.sort(key=lambda row: (-row["bytes"], row["session"]))
        used = store.used_bytes()
        _print(as_json, {"sessions": rows, "used_bytes": used},
               [*(f"{row['session']}  {row['state']:12}  generation {row['generation']}  {row['bytes']:,} bytes  "
                  f"{row['frontier_tokens']:,} tokens  {row['response_records']} responses"
                  + (f"  ({row['reason']})" if row["reason"] else "") for row in rows),
                f"{len(rows)} sessions, {used:,} bytes in use"])


@store_app.command("verify")
def verify(directory: Directory, as_json: AsJson = False, api_key_file: KeyFile = None) -> None:
    """Read and check every byte. Damaged objects are set aside in quarantine/. Exit 1 when anything is damaged."""
    with _speaking(), _existing(directory, api_key_file) as store:
        report = verify_store(store)
        rows = [_row(store, fingerprint, session) for session, fingerprint in _sessions(store)]
        bad = [row for row in rows if row["state"] != "available"]
        whole = not report.damaged and not bad
        _print(as_json, {"whole": whole, "objects": report.objects, "bytes_read": report.bytes_read,
                         "damaged": list(report.damaged), "orphans": report.orphans, "sessions": rows},
               [*(f"damaged object {name}" for name in report.damaged),
                *(f"session {row['session']} is {row['state']}: {row['reason']}" for row in bad),
                f"{report.objects:,} objects, {report.bytes_read:,} bytes read, {report.orphans} kept by no session: "
                + ("whole" if whole else "damaged; run `ninfer-engine store repair`")])
        _exit_if(not whole)


@store_app.command("gc")
def gc(directory: Directory, as_json: AsJson = False, api_key_file: KeyFile = None) -> None:
    """Drop what no session keeps, and count the bytes anew."""
    with _speaking(), _existing(directory, api_key_file) as store:
        done = store.gc()
        _print(as_json, asdict(done), [f"{done.removed_objects} objects dropped, {done.freed_bytes:,} bytes freed, "
                                       f"{done.used_bytes:,} in use"])


@store_app.command("export")
def export(directory: Directory, session: Session,
           archive: Annotated[Path, typer.Argument(help="file to write", show_default=False)],
           as_json: AsJson = False, api_key_file: KeyFile = None) -> None:
    """Write a session to one file, whole or not at all."""
    with _speaking(), _existing(directory, api_key_file) as store:
        name, fingerprint = _find(store, session)
        _moved(as_json, "exported", archive, export_session(store.bound_to(fingerprint), name, archive))


@store_app.command("import")
def import_(directory: Directory,
            archive: Annotated[Path, typer.Argument(help="file that `export` wrote", show_default=False)],
            force: Force = False, as_json: AsJson = False, api_key_file: KeyFile = None,
            quota_mib: Quota = 16384) -> None:
    """Bring a session in from a file, whole or not at all; never back to an older generation without --force."""
    with _speaking():
        if not archive.is_file():
            raise UsageError(f"there is no file {archive}: name one that `ninfer-engine store export` wrote")
        key = _key(api_key_file)
        with closing(DurableStore.open(directory, archive_fingerprint(archive, key), quota_mib << 20, key)) as store:
            _moved(as_json, "imported", archive, import_session(store, archive, force))


@store_app.command("repair")
def repair(directory: Directory, as_json: AsJson = False, api_key_file: KeyFile = None) -> None:
    """Rebuild the file and cut damaged sessions back to what is whole. The engine has to be stopped. Exit 1 when a
    session was lost altogether."""
    with _speaking(), _existing(directory, api_key_file) as store:
        fingerprints = list({json.dumps(found, sort_keys=True): found for _, found in _sessions(store)}.values())
        store.close()
        kept, cut, lost, freed = True, list[str](), list[str](), 0
        for fingerprint in fingerprints or [{}]:
            with closing(DurableStore.open(directory, fingerprint, store.context.quota_bytes,
                                           store.context.key)) as own:
                done = repair_store(own)
            kept, freed = kept and done.file_kept, freed + done.freed_bytes
            cut += done.cut_back
            lost += done.given_up
        _print(as_json, {"file_kept": kept, "cut_back": cut, "given_up": lost, "freed_bytes": freed},
               [*(f"session {name} was cut back to its whole checkpoints" for name in cut),
                *(f"session {name} had no whole checkpoint and is gone" for name in lost),
                ("the file was rebuilt" if kept else "the file was damaged beyond copying: it lies in quarantine/, "
                 "the store is empty") + f", {freed:,} bytes freed"])
        _exit_if(bool(lost) or not kept)


@contextmanager
def _speaking() -> Iterator[None]:
    """The package's errors as one line on standard error and an exit code."""
    try:
        yield
    except (SessionMissingError, GenerationError, ArchiveError, UsageError) as error:
        _fail(str(error), EXIT_USAGE)
    except (StoreCorruptError, StoreIncompatibleError) as error:
        _fail(str(error), EXIT_DAMAGED)
    except StoreError as error:
        _fail(str(error), EXIT_USAGE)


def _fail(message: str, code: int) -> None:
    typer.echo(f"ninfer-engine store: {message}", err=True)
    raise typer.Exit(code) from None


def _exit_if(damaged: bool) -> None:
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


@contextmanager
def _existing(directory: Path, api_key_file: Path | None) -> Iterator[DurableStore]:
    """A store that is there already: looking must not make one. Bound to no configuration."""
    if not (directory / "lmdb" / "data.mdb").is_file():
        raise UsageError(f"there is no store in {directory}: name the directory that --session-checkpoint-dir names")
    with closing(DurableStore.open(directory, {}, 1 << 62, _key(api_key_file))) as store:
        store.database()
        yield store


def _key(path: Path | None) -> OriginKey:
    if path is None:
        return OriginKey.from_api_key(None)
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"--api-key-file {path}: {error.strerror}") from error
    if not text:
        raise UsageError(f"--api-key-file {path} is empty: put the key there, or leave the flag out")
    return OriginKey.from_api_key(text)


def _sessions(store: DurableStore) -> list[tuple[str, dict[str, str]]]:
    """Every session and the configuration that saved it; none known for a damaged record."""
    known = {header.session: header.fingerprint for header in store.headers()}
    return [(name, known.get(name, {})) for name in store.sessions()]


def _row(store: DurableStore, fingerprint: dict[str, str], session: str) -> dict[str, Any]:
    status = store.bound_to(fingerprint).status(session)
    return {"session": session, "state": status.state, "generation": status.generation, "bytes": status.bytes,
            "frontier_tokens": status.frontier_tokens, "response_records": status.response_records,
            "reason": status.reason, "fingerprint": fingerprint}


def _find(store: DurableStore, prefix: str) -> tuple[str, dict[str, str]]:
    found = [item for item in _sessions(store) if item[0].startswith(prefix.lower())] if prefix else []
    if len(found) > 1:
        raise UsageError(f"{prefix} begins the names of {len(found)} sessions: give more of it")
    if not found:
        raise SessionMissingError(prefix)
    return found[0]


def _moved(as_json: bool, verb: str, archive: Path, done: ArchiveResult) -> None:
    _print(as_json, asdict(done) | {"archive": str(archive)},
           [f"{verb} session {done.session}, generation {done.generation}, {done.objects} objects, "
            f"{done.written_bytes:,} bytes written"])


def _print(as_json: bool, document: dict[str, Any], lines: list[str], say: Callable[[str], None] = typer.echo) -> None:
    say(json.dumps(document, sort_keys=True) if as_json else "\n".join(lines))
