"""What can go wrong in memory. Every error carries the figures and the advice that let a caller go on."""


class PoolError(Exception):
    """Base of every error of the page and image pools. Nothing has changed when one is raised."""


class OutOfPagesError(PoolError):
    """The device has fewer free pages than asked for."""

    def __init__(self, wanted: int, free: int, total: int) -> None:
        super().__init__(f"{wanted} KV pages wanted, {free} of {total} free on the device: "
                         "demote or release pages first, or raise --kv-capacity")
        self.wanted, self.free, self.total = wanted, free, total


class OutOfHostError(PoolError):
    """The host tier has less room than asked for."""

    def __init__(self, what: str, wanted: int, free: int, total: int, flag: str) -> None:
        super().__init__(f"{wanted} {what} wanted on the host, {free} of {total} free: "
                         f"drop host copies first, or raise {flag}")
        self.wanted, self.free, self.total = wanted, free, total


class OutOfSlotsError(PoolError):
    """No device slot is free."""

    def __init__(self, total: int) -> None:
        super().__init__(f"all {total} device state slots are taken: "
                         "demote or release images first, or raise --device-state-slots")
        self.total = total


class NotResidentError(PoolError):
    """The bytes are not on the tier that was asked for."""

    def __init__(self, what: str, number: int, tier: str) -> None:
        super().__init__(f"{what} {number} is not on the {tier}: promote it, or read it where it is")
        self.number, self.tier = number, tier


class UnknownIdError(PoolError):
    """No such page, image or slot: it was never handed out, or its last reference is gone."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number} is unknown here: it was released, or comes from another pool")
        self.number = number


class WrongSizeError(PoolError):
    """Imported bytes do not have the length of this pool's items."""

    def __init__(self, what: str, got: int, expected: int) -> None:
        super().__init__(f"{what} takes exactly {expected} bytes, got {got}: "
                         "the bytes come from another model or dtype")
        self.got, self.expected = got, expected


class SharedWriteError(PoolError):
    """A page that others read cannot be written."""

    def __init__(self, number: int, references: int) -> None:
        super().__init__(f"page {number} has {references} references: copy it with copy_tail and write the copy")
        self.number, self.references = number, references


class AuditError(PoolError):
    """Pages or slots were lost, or are counted twice; `findings` says which."""

    def __init__(self, findings: list[str]) -> None:
        super().__init__("memory accounts do not balance: " + "; ".join(findings))
        self.findings = findings
