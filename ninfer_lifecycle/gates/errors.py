"""What the gates refuse to compute."""

from ninfer_lifecycle.errors import NinferError


class GateError(NinferError):
    """A gate was asked for something that has no answer: a percentile of nothing, a plan without a size."""
