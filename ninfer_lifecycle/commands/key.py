"""`ninfer key new | init | list | rotate | revoke | export`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_lifecycle.commands import options
from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.receipts.errors import StoreError
from ninfer_lifecycle.receipts.keyring import Keyring, follow, parse_keyring, sign_keyring
from ninfer_lifecycle.receipts.keyring_edit import Change, find_key, first_keyring, revoked, rotated
from ninfer_lifecycle.receipts.keys import PublicKey, Signer, load_public_key, new_key
from ninfer_lifecycle.receipts.sources import keyring_versions, read_keyring
from ninfer_lifecycle.receipts.store import publish
from ninfer_lifecycle.receipts.times import parse_span, parse_time
from ninfer_lifecycle.receipts.trust import Role

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Folder = Annotated[Path, typer.Option("--keyring", help="folder of keyring.N.json, one file a version")]
RootKeys = Annotated[list[str], typer.Option("--root-key", help="private root key file, or URI@FILE.pub of a key "
                                                                "store; may be repeated")]
Expires = Annotated[str, typer.Option(help="how long the new version holds, as 365d")]
Members = Annotated[list[str] | None, typer.Option("--add", help="ROLE=FILE.pub with role qualifier, release or root")]
Leavers = Annotated[list[str] | None, typer.Option("--remove", help="ROLE=KEYID, 8 digits of it or more")]
Thresholds = Annotated[list[str] | None, typer.Option("--threshold", help="ROLE=N: how many keys must sign")]


@app.command("new")
def new(
    path: Annotated[Path, typer.Argument(help="private key file; the public key goes beside it as .pub")],
    passphrase: Annotated[bool, typer.Option("--passphrase", help="ask for a passphrase")] = False,
    passphrase_file: options.PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Make an Ed25519 key pair. Never overwrites; the private key file has mode 0600 from its creation."""
    secret: bytes | None = None
    if passphrase_file is not None:
        secret = options.read_passphrase(passphrase_file)
    elif passphrase:
        secret = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True).encode()
    private = path if path.suffix else path.with_suffix(".key")
    public = new_key(private, secret)
    typer.echo(f"private key {private}", err=True)
    typer.echo(f"public key  {private.with_suffix('.pub')}", err=True)
    if as_json:
        print_json({"keyid": public.keyid, "private": str(private), "public": str(private.with_suffix(".pub"))})
    else:
        typer.echo(public.keyid)


@app.command("init")
def init(
    folder: Folder, root_key: RootKeys, add: Members = None, threshold: Thresholds = None, expires: Expires = "365d",
    passphrase_file: options.PassphraseFile = None, as_json: Json = False,
) -> None:
    """Make version 1 of a keyring; the root keys that sign it have the root role."""
    now = options.now()
    signers = _signers(root_key, passphrase_file)
    members = [(Role.ROOT, signer.public_key) for signer in signers] + _members(add)
    keyring = first_keyring(members, _thresholds(threshold), now, now + parse_span(expires))
    _write(folder, keyring, sign_keyring(keyring, signers), as_json=as_json)


@app.command("rotate")
def rotate(
    folder: Folder, root_key: RootKeys, add: Members = None, remove: Leavers = None, threshold: Thresholds = None,
    expires: Expires = "365d", passphrase_file: options.PassphraseFile = None, as_json: Json = False,
) -> None:
    """Sign the next version: keys in, keys out, thresholds, a new expiry. Old and new root must both sign it."""
    now = options.now()
    current = _current(folder, now)
    leaving = [(role, text.lower()) for role, text in map(_assignment, remove or [])]
    change = Change(add=_members(add), remove=leaving, thresholds=_thresholds(threshold))
    keyring = rotated(current, change, now, now + parse_span(expires))
    _write(folder, keyring, sign_keyring(keyring, _signers(root_key, passphrase_file), current), as_json=as_json)


@app.command("revoke")
def revoke(
    keyid: Annotated[str, typer.Argument(help="key id, 8 digits of it or more")],
    folder: Folder, root_key: RootKeys,
    on: Annotated[str | None, typer.Option(help="what it signed for times before this goes on counting, as "
                                                "2026-01-31T00:00:00Z; none: from now")] = None,
    compromised: Annotated[bool, typer.Option("--compromised", help="nothing it ever signed counts")] = False,
    expires: Expires = "365d", passphrase_file: options.PassphraseFile = None, as_json: Json = False,
) -> None:
    """Sign the next version with a key revoked."""
    now = options.now()
    current = _current(folder, now)
    if compromised and on is not None:
        raise UsageError("a compromised key has no date", "Its thief could write any; leave --on out.")
    moment = None if compromised else _moment(on, now)
    keyring = revoked(current, keyid, now, now + parse_span(expires), moment)
    _write(folder, keyring, sign_keyring(keyring, _signers(root_key, passphrase_file), current), as_json=as_json)


@app.command("list")
def list_command(
    keyring: Annotated[Path, typer.Option("--keyring", help="keyring file, or the folder of all its versions")],
    root: options.Roots = None,
    as_json: Json = False,
) -> None:
    """List the newest version of a keyring: roles, thresholds, keys, revocations."""
    found = read_keyring(keyring, options.now(), [load_public_key(path) for path in root or []])
    if as_json:
        print_json(_document(found))
        return
    typer.echo(f"version {found.version}, issued {found.issued_on}, expires {found.expires_on}")
    for role, entry in sorted(found.roles.items()):
        typer.echo(f"{role}: {entry.threshold} of {len(entry.keyids)} must sign")
        for keyid in entry.keyids:
            typer.echo(f"  {keyid}{_state(found, keyid)}")
    held = {keyid for entry in found.roles.values() for keyid in entry.keyids}
    for keyid in sorted(set(found.keys) - held):
        typer.echo(f"no role: {keyid}{_state(found, keyid)}")


@app.command("export")
def export(
    key: Annotated[str | None, typer.Argument(help="private key file")] = None,
    keyid: Annotated[str | None, typer.Option(help="key id in --keyring, 8 digits of it or more")] = None,
    keyring: Annotated[Path | None, typer.Option("--keyring", help="keyring file or folder")] = None,
    passphrase_file: options.PassphraseFile = None,
    as_json: Json = False,
) -> None:
    """Print a public key as PEM, from a private key file or from a keyring."""
    if key is not None and keyid is None:
        _print_key(options.open_signer(key, passphrase_file).public_key, as_json=as_json)
        return
    if key is not None or keyid is None or keyring is None:
        raise UsageError("which key to export is not said", "Give a private key file, or --keyring with --keyid.")
    found = read_keyring(keyring, options.now(), [])
    _print_key(found.keys[find_key(found, keyid)].key, as_json=as_json)


def _print_key(key: PublicKey, *, as_json: bool) -> None:
    pem = key.pem().decode()
    if as_json:
        print_json({"keyid": key.keyid, "pem": pem})
    else:
        typer.echo(pem, nl=False)


def _document(keyring: Keyring) -> dict[str, Any]:
    return {
        "version": keyring.version, "issuedOn": keyring.issued_on, "expiresOn": keyring.expires_on,
        "roles": {role: {"threshold": entry.threshold, "keyids": list(entry.keyids)}
                  for role, entry in sorted(keyring.roles.items())},
        "keys": {keyid: {"revokedOn": entry.revoked_on, "compromised": bool(entry.compromised)}
                 for keyid, entry in sorted(keyring.keys.items())},
    }


def _state(keyring: Keyring, keyid: str) -> str:
    entry = keyring.keys[keyid]
    if entry.compromised:
        return "  compromised: nothing it signed counts"
    return f"  revoked on {entry.revoked_on}" if entry.revoked_on else ""


def _current(folder: Path, now: datetime) -> Keyring:
    """The newest version; an expired one may still be rotated, for how else would it be renewed?"""
    raws = [path.read_bytes() for path in keyring_versions(folder)]
    keyring = parse_keyring(raws[0]).keyring
    for raw in raws[1:]:
        keyring = follow(keyring, raw).keyring
    if parse_time(keyring.issued_on) > now:
        raise UsageError(f"version {keyring.version} was issued at {keyring.issued_on}, which has not come yet",
                         "Check this machine's clock.")
    return keyring


def _signers(keys: list[str], passphrase_file: Path | None) -> list[Signer]:
    return [options.open_signer(key, passphrase_file) for key in keys]


def _members(texts: list[str] | None) -> list[tuple[Role, PublicKey]]:
    return [(role, load_public_key(Path(text))) for role, text in map(_assignment, texts or [])]


def _thresholds(texts: list[str] | None) -> dict[Role, int]:
    found = {}
    for role, text in map(_assignment, texts or []):
        if not text.isascii() or not text.isdigit() or text == "0":
            raise UsageError(f"{text!r} is no threshold", "Write ROLE=N with N of 1 or more.")
        found[role] = int(text)
    return found


def _assignment(text: str) -> tuple[Role, str]:
    name, separator, value = text.partition("=")
    try:
        role = Role(name)
    except ValueError:
        raise UsageError(f"{name!r} is no role", f"Roles are {', '.join(Role)}; write ROLE=VALUE.") from None
    if not separator or not value:
        raise UsageError(f"{text!r} has no value", "Write ROLE=VALUE.")
    return role, value


def _moment(text: str | None, now: datetime) -> datetime:
    if text is None:
        return now
    try:
        return parse_time(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time", "Write it as 2026-01-31T00:00:00Z, in UTC.") from None


def _write(folder: Path, keyring: Keyring, raw: bytes, *, as_json: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"keyring.{keyring.version}.json"
    try:
        publish(path, raw)
    except FileExistsError:
        raise StoreError(f"{path} exists", "Use ninfer key rotate to make the next version.") from None
    if as_json:
        print_json({"keyring": str(path), "version": keyring.version, "expiresOn": keyring.expires_on})
    else:
        typer.echo(f"{path}: version {keyring.version}, expires {keyring.expires_on}")
