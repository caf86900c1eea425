"""Whether a container still has the GPUs that it was given: asked inside, in every life.

A container can lose its devices while it lives, or start its next life without them (nvidia-container-toolkit 1227: a
reload of systemd takes the device rules away). The engine may then run on, or fall back to the CPU.
"""

import re

from ninfer_engine.contract.status import StatusDocument
from ninfer_lifecycle.errors import EngineError
from ninfer_lifecycle.hosts.daemon import Said

LIST_GPUS = ("nvidia-smi", "-L")
_UUID = re.compile(r"UUID:\s*((?:GPU|MIG)-[0-9A-Za-z./-]+)")


class GpuLostError(EngineError):
    """The engine does not have the GPUs that it was given."""

    def __init__(self, what: str) -> None:
        super().__init__(f"GPUs were asked for and {what}", "see whether nvidia-smi works on the daemon's machine and "
                         "in a new container; after a reload of systemd containers lose their devices: start it again")


def listed_gpus(text: str) -> tuple[str, ...]:
    """The UUIDs in what `nvidia-smi -L` prints."""
    return tuple(_UUID.findall(text))


def gpu_difference(asked: tuple[str, ...], said: Said) -> str | None:
    """What is wrong with the GPUs seen inside, in words; None when they are the ones asked for. asked: not empty."""
    if said.exit_code != 0:
        first = (said.output.strip().splitlines() or ["it says nothing"])[0]
        return f"nvidia-smi in the container ends with {said.exit_code}: {first}"
    seen = listed_gpus(said.output)
    if asked == ("all",):
        return None if seen else "the container sees none"
    missing, more = sorted(set(asked) - set(seen)), sorted(set(seen) - set(asked))
    if missing:
        return f"the container does not see {', '.join(missing)}"
    return f"the container also sees {', '.join(more)}" if more else None


def check_device(asked: tuple[str, ...], status: StatusDocument) -> None:
    """Raises GpuLostError when an engine that was given GPUs says that it runs elsewhere."""
    if asked and status.identity.device == "cpu":  # on a GPU the status document names its product
        raise GpuLostError("the engine says that it runs on the CPU")
