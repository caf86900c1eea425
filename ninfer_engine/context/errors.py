"""What the context cache refuses to do. Each error says what the caller should do instead."""


class ContextError(Exception):
    """A call that the context cache cannot honour; `advice` says how to go on."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(f"{message}; {advice}")
        self.advice = advice


class StalePlanError(ContextError):
    """The inventory changed between planning and committing."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the {what} was made for an older inventory", "plan again and execute the new plan")


class BlockedPlanError(ContextError):
    """A plan that waits for running sequences was committed."""

    def __init__(self) -> None:
        super().__init__("the plan is blocked by running sequences", "wait until one ends, then plan again")


class UnknownSequenceError(ContextError):
    """A sequence id that is not running."""

    def __init__(self, sequence_id: str) -> None:
        super().__init__(f"sequence {sequence_id!r} is not running", "begin a plan under that id first")


class PageCountError(ContextError):
    """The pages handed over are not the pages that the plan asked for."""

    def __init__(self, wanted: int, got: int) -> None:
        super().__init__(f"the plan needs {wanted} pages and {got} came", "allocate exactly plan.new_pages pages")


class PresetError(ContextError):
    """Cost presets that do not say what a cost model needs."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, "see docs/decisions/0004-planner.md for the fields, all in integer or float nanoseconds"
        )


class LineageError(ContextError):
    """A lineage that cannot be restored as it is."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "treat the saved session as incompatible and let the client replay")
