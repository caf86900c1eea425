"""`ninfer dashboard build | serve`: a site over a folder of receipts, and the same with runs in progress."""

import importlib
import ipaddress
import socket
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from ninfer_lifecycle.commands import options
from ninfer_lifecycle.commands.output import Json, plain, print_json
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.receipts.keys import load_public_key
from ninfer_lifecycle.receipts.trust import Role, RoleTrust, trust_keys
from ninfer_lifecycle.reports.gather import Gatherer
from ninfer_lifecycle.reports.site import build_site, claim

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

Receipts = Annotated[Path, typer.Option(help="folder of receipts")]
ReleaseKeys = Annotated[list[Path] | None, typer.Option(
    "--release-pub", help="public key of the release role, for marks of releases; may be repeated. With --keyring its "
                          "own release keys count")]


@app.command("build")
def build_command(
    folder: Annotated[Path, typer.Argument(help="where the site goes: a new folder, or one of an earlier build",
                                           metavar="DIR")],
    receipts: Receipts = Path("receipts"),
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    release_pub: ReleaseKeys = None,
    as_json: Json = False,
) -> None:
    """Verify all receipts of a folder and write a static site about them. Any web server can serve it."""
    gatherer = _gatherer(receipts, key, keyring, root, release_pub)
    began = time.monotonic()
    built = build_site(gatherer, folder, options.now(), say=lambda line: typer.echo(line, err=True))
    if as_json:
        print_json({"site": str(folder), "receipts": built.receipts, "groups": built.groups, "refused": built.refused,
                    "reports": built.reports, "version": built.version})
        return
    typer.echo(plain(f"{folder}: {built.receipts} receipts of {built.groups} lanes, {built.refused} files refused, "
                     f"{built.reports} whole reports, in {time.monotonic() - began:.1f} s"))
    typer.echo(f"look at it: ninfer dashboard serve --receipts {plain(str(receipts))}, or any web server over {folder}")


@app.command("serve")
def serve_command(
    receipts: Receipts = Path("receipts"),
    runs: Annotated[Path, typer.Option(help="folder of run directories to watch")] = Path("runs"),
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port; 0 for a free one")] = 8765,
    allow_host: Annotated[list[str] | None, typer.Option(
        help="name by which browsers may address it, beside localhost; may be repeated. On an address that is not of "
             "this machine alone, any name without it")] = None,
    site: Annotated[Path | None, typer.Option(help="folder to keep the site in; none: a temporary one")] = None,
    key: options.Keys = None,
    keyring: options.KeyringPath = None,
    root: options.Roots = None,
    release_pub: ReleaseKeys = None,
    as_json: Json = False,
) -> None:
    """Serve the site, rebuilt as receipts come, with runs in progress and /metrics. No login: keep it on this machine
    or behind something that asks for one.
    """
    serving = _server()
    gatherer = _gatherer(receipts, key, keyring, root, release_pub)
    with tempfile.TemporaryDirectory(prefix="ninfer-site-") as scratch, _listening(host, port) as listener:
        out = site if site is not None else Path(scratch) / "site"
        claim(out)
        dashboard = serving.Dashboard(gatherer, serving.RunWatcher(runs), out, options.now,
                                      lambda line: typer.echo(plain(line), err=True))
        dashboard.refresh()
        address = listener.getsockname()
        url = f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}/"
        if as_json:
            print_json({"url": url, "receipts": str(receipts), "runs": str(runs), "site": str(out)})
        else:
            typer.echo(f"serving {url} - stop it with Ctrl-C")
        try:
            serving.run(dashboard, listener, _allowed(address[0], allow_host or []))
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)


def _gatherer(receipts: Path, key: list[Path] | None, keyring: Path | None, root: list[Path] | None,
              release_pub: list[Path] | None) -> Gatherer:
    now = options.now()
    source = options.trust_source(key, keyring, root)
    release: RoleTrust | None = None
    if release_pub:
        release = trust_keys(Role.RELEASE, *(load_public_key(path) for path in release_pub))
    elif source.keyring is not None:
        release = source.load(Role.RELEASE, now)
    return Gatherer(receipts, source.load(Role.QUALIFIER, now), release)


def _server() -> ModuleType:
    """reports.serve, imported when it is needed. Raises UsageError where what it needs is not installed."""
    try:
        return importlib.import_module("ninfer_lifecycle.reports.serve")
    except ModuleNotFoundError as error:
        raise UsageError(f"serving needs the package {error.name}", "Install it: pip install 'ninfer[dashboard]'.") \
            from None


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, so that its port is known before anything is said. Raises UsageError."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(128)
    except OSError as error:
        raise UsageError(f"cannot listen on {host} port {port}: {error.strerror}",
                         "Give another --port, or --port 0 for a free one.") from None
    return made


def _allowed(address: str, names: list[str]) -> list[str]:
    """Host names to answer. Of this machine alone: its usual names, so that no foreign page can rebind one to it."""
    if not names and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return ["*"]
    return ["localhost", "127.0.0.1", "[::1]", address, *names]
