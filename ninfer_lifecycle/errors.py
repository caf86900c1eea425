"""The tool's errors: each is a value with advice, and one place (`cli.main`) turns them into exit codes."""

import errno
from enum import IntEnum


class ExitCode(IntEnum):
    """What `ninfer` tells the shell."""

    PASSED = 0
    FAILED = 1
    USAGE = 2
    INCONCLUSIVE = 3
    INTERRUPTED = 130
    TERMINATED = 143


class NinferError(Exception):
    """Something that a person can act on: what happened, and what to do about it."""

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.message}\n  {self.advice}" if self.advice else self.message


class UsageError(NinferError):
    """Bad input: a profile, a path, an option."""


class HostError(NinferError):
    """The place where an engine should run could not run it (no daemon, no image, a port taken, never healthy)."""

    exit_code = ExitCode.INCONCLUSIVE


class EngineError(NinferError):
    """A running engine answered in a way that ends the run (wrong identity, drift, an unexpected status)."""

    exit_code = ExitCode.INCONCLUSIVE


DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""What a disk says that can take no more, whichever file it was."""


class DiskError(NinferError):
    """The disk of this machine took no more while the tool wrote to it."""

    exit_code = ExitCode.INCONCLUSIVE

    def __init__(self, error: OSError) -> None:
        where = f" for {error.filename}" if error.filename else ""
        super().__init__(f"cannot write{where}: {error.strerror}", "free space where runs and receipts go; `ninfer "
                         "doctor PROFILE` says how much is needed, and `qualify --resume` takes up what was begun")


PATH_ERRORS = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
                         errno.ENAMETOOLONG, errno.ELOOP})
"""What the system says of a path that cannot be used as it was meant to be."""


class PathError(UsageError):
    """A file or a directory cannot be used."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"{error.filename}: {error.strerror}", "give a path that is there, and that you may use")


def as_told(error: BaseException) -> NinferError | None:
    """The error for a person: ours as it is, and of the system's what a person can act on; None for any other."""
    if isinstance(error, NinferError):
        return error
    if not isinstance(error, OSError):
        return None
    if error.errno in DISK_ERRORS:
        return DiskError(error)
    return PathError(error) if error.errno in PATH_ERRORS and isinstance(error.filename, str) else None


class RefusedError(NinferError):
    """A receipt or a release was refused; the reason is the message."""

    exit_code = ExitCode.FAILED
