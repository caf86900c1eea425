"""Running `ninfer` in this process: exit code, stdout, stderr, with the clock of the tests."""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from unittest import mock

from receipt_cases import NOW

from ninfer_lifecycle import cli
from ninfer_lifecycle.commands import options


@dataclass(frozen=True)
class Ran:
    """What a command line did."""

    code: int
    out: str
    err: str


@contextlib.contextmanager
def clock(moment: datetime) -> Iterator[None]:
    """Commands read their one clock value as `moment`."""
    with mock.patch.object(options, "now", lambda: moment):
        yield


def ninfer(*arguments: object, at: datetime = NOW) -> Ran:
    """Run one command line."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), clock(at):
        code = cli.run([str(item) for item in arguments])
    return Ran(code, out.getvalue(), err.getvalue())
