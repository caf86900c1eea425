"""What the durable store can say no to. Every message says what a person or a caller can do."""


class StoreError(Exception):
    """Base of every error of the durable store. A save that raises one has left the last generation as it was."""


class StoreUnavailableError(StoreError):
    """The store cannot be used just now: read-only, full disk, IO error, held by another process."""


class StoreIncompatibleError(StoreError):
    """What is stored belongs to another model, configuration, format or key; `parts` names what differs."""

    def __init__(self, message: str, parts: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.parts = parts


class StoreCorruptError(StoreError):
    """Stored bytes are not the bytes that were written. They were set aside and are never returned."""


class StoreCutShortError(StoreCorruptError):
    """The store's file is shorter than it was: nothing in it can be trusted to be there."""


class ObjectDamagedError(StoreCorruptError):
    """An object is not what was written; `digest` is to be set aside."""

    def __init__(self, digest: bytes, what: str) -> None:
        super().__init__(f"object {digest.hex()[:16]} {what}")
        self.digest = digest


class ObjectMissingError(StoreCorruptError):
    """A session refers to an object that the store does not hold (any more)."""

    def __init__(self, digest: bytes) -> None:
        super().__init__(f"object {digest.hex()[:16]} is not in the store: the session cannot be restored; "
                         "replay it, and the next save is whole again")
        self.digest = digest


class SessionMissingError(StoreError):
    """No such session is stored."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session[:16]} is not in the store")
        self.session = session


class QuotaError(StoreError):
    """A save does not fit, even after every session that may go is gone."""

    def __init__(self, needed: int, room: int, quota: int, flag: str = "--session-checkpoint-quota-mib") -> None:
        super().__init__(f"the save needs {needed} bytes and {room} of the quota of {quota} can be had: "
                         f"raise {flag}, or delete sessions")
        self.needed, self.room, self.quota = needed, room, quota


class GenerationError(StoreError):
    """An import would take a session back to an older generation."""

    def __init__(self, session: str, stored: int, offered: int) -> None:
        super().__init__(f"session {session[:16]} is stored at generation {stored}, the archive has {offered}: "
                         "use --force to go back")
        self.stored, self.offered = stored, offered


class ArchiveError(StoreError):
    """An archive is not one of ours, or not whole."""
