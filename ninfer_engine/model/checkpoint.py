"""Where tensors come from: by name, checked, in the compute dtype. Safetensors files are one such place."""

import json
import logging
import struct
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ninfer_engine.model.config import read_json
from ninfer_engine.model.errors import ModelError

logger = logging.getLogger("ninfer.model")

INDEX = "model.safetensors.index.json"

_UNUSED_PREFIXES = ("mtp.",)  # multi-token-prediction heads: not part of the decoder
_VISION_PREFIXES = ("model.visual.", "visual.", "model.vision_tower.")


class Checkpoint(Protocol):
    """The tensors of a model under the names of transformers. Remembers which were taken."""

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""

    def take(self, name: str, *shape: int) -> Tensor:
        """A copy of the tensor in the compute dtype, on the device. Raises ModelError, naming it, when it is missing,
        damaged or of another shape."""


class SafetensorsCheckpoint:
    """The safetensors files of a directory, memory-mapped: those that the index names, or else all of them."""

    def __init__(self, path: Path, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._file_of: dict[str, Any] = {}
        self._taken: set[str] = set()
        for file in _files(path):
            opened = _open(file)
            for name in opened.keys():  # noqa: SIM118  # the reader is no mapping
                if name in self._file_of:
                    raise ModelError(f"tensor {name} is in more than one file", "remove the file that does not belong")
                self._file_of[name] = opened
        _require_indexed(path, self._file_of.keys())

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._file_of

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `name` in the compute dtype. Raises ModelError when it is missing or has another shape."""
        file = self._file_of.get(name)
        if file is None:
            raise ModelError(f"tensor {name} is missing from the safetensors files", "the checkpoint is incomplete")
        try:
            tensor: Tensor = file.get_tensor(name)
        except SafetensorError as error:
            raise ModelError(f"tensor {name} cannot be read: {error}", "fetch the file again") from None
        require_shape(name, tuple(tensor.shape), shape)
        if not tensor.is_floating_point():
            raise ModelError(f"tensor {name} holds {str(tensor.dtype).removeprefix('torch.')} numbers",
                             "quantised checkpoints are served from GGUF files only")
        self._taken.add(name)
        return tensor.to(device=self._device, dtype=self._dtype, copy=True)

    def require_all_taken(self, tied: bool) -> None:
        """Raise ModelError when the files hold a tensor that the decoder has no place for. tied: a head is a copy of
        the embeddings and may be there. Vision weights are passed over with a notice."""
        surplus = {name for name in self._file_of.keys() - self._taken if not name.startswith(_UNUSED_PREFIXES)}
        vision = {name for name in surplus if name.startswith(_VISION_PREFIXES)}
        if vision:
            logger.warning("the checkpoint holds %d vision tensors, which are not loaded: it serves text only",
                           len(vision))
        surplus -= vision | ({"lm_head.weight"} if tied else set())
        if surplus:
            raise surplus_error(sorted(surplus), "the safetensors files hold")


def require_shape(name: str, found: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """Raise ModelError when a tensor has another shape than the configuration asks for."""
    if found != wanted:
        raise ModelError(
            f"tensor {name} has shape {list(found)}, but config.json asks for {list(wanted)}",
            "the weights and config.json belong to different models",
        )


def surplus_error(names: list[str], where: str) -> ModelError:
    """The error for tensors that the decoder has no place for; `names` is sorted and not empty."""
    named = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return ModelError(
        f"{where} tensors that this architecture has no place for: {named}",
        "config.json describes another model, or a file does not belong here",
    )


def _weight_map(path: Path) -> dict[str, str] | None:
    """Tensor -> file, as the index of a sharded checkpoint says; None without an index."""
    if not (path / INDEX).is_file():
        return None
    found = read_json(path / INDEX).get("weight_map")
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ModelError(f"{INDEX} holds no weight_map of tensor names to file names", "fetch the file again")
    return found


def _files(path: Path) -> list[Path]:
    weight_map = _weight_map(path)
    if weight_map is None:
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise ModelError(f"no *.safetensors file in {path}", "point --model at a directory in Hugging Face layout")
        return files
    for name, file in weight_map.items():
        if Path(file).name != file or not (path / file).is_file():
            raise ModelError(f"tensor {name} is in {file}, says {INDEX}, but {path} has no such file",
                             "fetch the missing file")
    return sorted(path / file for file in set(weight_map.values()))


def _require_indexed(path: Path, found: Any) -> None:
    missing = sorted((_weight_map(path) or {}).keys() - found)
    if missing:
        raise ModelError(f"tensor {missing[0]} is named by {INDEX}, but is in none of its files",
                         "fetch the files again: they belong to different versions")


def _open(file: Path) -> Any:
    """The file's reader. It stays open: the file is mapped, and tensors are read from the map when they are taken."""
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        cut = _cut_tensor(file)
        told = f"it ends inside tensor {cut}" if cut else str(error)
        raise ModelError(f"{file.name} cannot be read: {told}", "fetch the file again") from None


def _cut_tensor(file: Path) -> str | None:
    """The first tensor that the file is too short for; None when its head cannot be read either.

    Format: 8 bytes, the header's length; the header, JSON with each tensor's [begin, end) after it; the tensors.
    """
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        room = file.stat().st_size - 8 - length
        ends = {name: entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"}
        cut = sorted((end, name) for name, end in ends.items() if end > room)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, struct.error):
        return None
    return cut[0][1] if cut else None
