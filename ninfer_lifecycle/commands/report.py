"""`ninfer report html` for people; the formats for machines are in report_formats.

Each takes a receipt, verifies it, and refuses what does not verify.
"""

from pathlib import Path
from typing import Annotated

import typer

from ninfer_lifecycle.commands import options, report_formats
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.errors import RefusedError, UsageError
from ninfer_lifecycle.receipts.store import SUFFIX, write_atomic
from ninfer_lifecycle.receipts.trust import Role
from ninfer_lifecycle.reports.html import render
from ninfer_lifecycle.reports.looked import Refused, look

app = report_formats.app


@app.command("html")
def html_command(
    receipt: Annotated[Path, typer.Argument(help="*.intoto.json or *.sigstore.json", metavar="RECEIPT")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="file to write; none: RECEIPT's name with .html, "
                                                                  "here")] = None,
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML file about a receipt of any result and age."""
    now = options.now()
    looked = look(receipt, options.trust_source(key, keyring, root).load(Role.QUALIFIER, now), now)
    if isinstance(looked, Refused):
        raise RefusedError(f"{receipt} is refused at step '{looked.step}': {looked.detail}", looked.advice)
    page = render(looked.facts, now=now, receipt_name=receipt.name)
    target = out or Path(receipt.name.removesuffix(SUFFIX).removesuffix(".sigstore.json") + ".html")
    try:
        write_atomic(target, page.encode("utf-8"))
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error.strerror}", "Give a file that can be: --out FILE.") \
            from None
    if as_json:
        print_json({"receipt": str(receipt), "result": looked.facts.result, "report": str(target),
                    "payloadSha256": looked.facts.payload_sha256, "bytes": len(page.encode("utf-8"))})
        return
    typer.echo(plain(f"{target}: {looked.facts.result}, {len(page.encode('utf-8'))} bytes, opens without a network"))
