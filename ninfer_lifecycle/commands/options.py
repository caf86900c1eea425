"""Options that several commands share: whom to trust, and how passphrases come in."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.receipts.errors import PassphraseNeededError
from ninfer_lifecycle.receipts.external import open_external
from ninfer_lifecycle.receipts.keys import Signer, load_public_key, load_signer
from ninfer_lifecycle.receipts.sources import TrustSource
from ninfer_lifecycle.state import own_public_key

Keys = Annotated[list[Path] | None, typer.Option("--key", help="public key file to trust; may be repeated")]
KeyringPath = Annotated[Path | None, typer.Option("--keyring", envvar="NINFER_KEYRING",
                                                  help="keyring file, or the folder of all its versions")]
Roots = Annotated[list[Path] | None, typer.Option("--root", help="pinned root public key of the keyring")]
PassphraseFile = Annotated[Path | None, typer.Option(help="file whose first line is the key's passphrase")]


def now() -> datetime:
    """The one reading of the clock of a command."""
    return datetime.now(UTC).replace(microsecond=0)


def trust_source(keys: list[Path] | None, keyring: Path | None, roots: list[Path] | None) -> TrustSource:
    """What the options say; without any, this machine's own key, with a word about it on stderr."""
    given = TrustSource(tuple(keys or ()), None if keys else keyring, tuple(roots or ()), own_public_key())
    if not given.keys and given.keyring is None and given.own is not None and given.own.is_file():
        typer.echo(f"trusting this machine's own key {given.own}; give --key or --keyring to trust another", err=True)
    return given


def read_passphrase(path: Path) -> bytes:
    """The first line of a file. Raises UsageError."""
    try:
        first = path.read_bytes().split(b"\n", maxsplit=1)[0].rstrip(b"\r")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "Give a file whose first line is the passphrase.") from None
    if not first:
        raise UsageError(f"{path} begins with an empty line", "Give a file whose first line is the passphrase.")
    return first


def open_signer(key: str, passphrase_file: Path | None) -> Signer:
    """The signer of a private key file, or of URI@FILE.pub; asks on a terminal for a passphrase that is needed."""
    uri, at, public = key.rpartition("@")
    if at and ":" in uri and not Path(key).exists():
        return open_external(uri, load_public_key(Path(public)))
    path = Path(key)
    if passphrase_file is not None:
        return load_signer(path, read_passphrase(passphrase_file))
    try:
        return load_signer(path)
    except PassphraseNeededError:
        if not sys.stdin.isatty():
            raise
    return load_signer(path, typer.prompt(f"Passphrase of {path}", hide_input=True, err=True).encode())
