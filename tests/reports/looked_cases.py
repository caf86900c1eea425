"""Receipts as reports for machines get them: looked at, verified or refused; and promtool."""

import subprocess
from pathlib import Path

import receipt_cases as cases
from needed import needed
from report_cases import verified

from ninfer_lifecycle.receipts.build import ReceiptFiles
from ninfer_lifecycle.receipts.store import ReceiptStore
from ninfer_lifecycle.reports.facts import facts_of
from ninfer_lifecycle.reports.looked import Refused, Verified

REFUSED = Refused("receipts/x.intoto.json", "signature", "no trusted key made a signature over it", "Give the key.")


def seen(made: ReceiptFiles, file: str = "receipts/tiny-cpu/one.intoto.json") -> Verified:
    """A made receipt, verified."""
    return Verified(file, facts_of(verified(made)), cases.LOCK)


def stored(tmp_path: Path, made: ReceiptFiles | None = None) -> Path:
    """A receipt on disk, with `key.pub` beside the folder of receipts."""
    (tmp_path / "key.pub").write_bytes(cases.signer(1).public_key.pem())
    return ReceiptStore(tmp_path / "receipts").write(cases.receipt() if made is None else made)


def flip(path: Path) -> None:
    """Change one byte of the payload."""
    raw = bytearray(path.read_bytes())
    raw[600] = ord("A") if raw[600] != ord("A") else ord("B")
    path.write_bytes(bytes(raw))


def promtool(*arguments: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run promtool."""
    return subprocess.run([needed("prometheus", "promtool"), *map(str, arguments)], input=stdin, capture_output=True,
                          timeout=60, check=False)
