"""A GGUF file: metadata and memory-mapped tensors. Reading is that of the `gguf` package; errors are ours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderField, ReaderTensor
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from numpy.typing import NDArray

from ninfer_engine.model.errors import ModelError


class _CutError(Exception):
    """The file ends inside a tensor, whose name is the argument."""


class _Reader(GGUFReader):
    """The package's reader, but a file that is too short is refused with the tensor's name."""

    def _build_tensors(self, start_offs: int, fields: list[ReaderField]) -> None:
        for field in fields:
            _, name, _, dims, kind, offset = field.parts
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
            if start_offs + int(offset[0]) + int(np.prod(dims)) * size // block > len(self.data):
                raise _CutError(bytes(name).decode("utf-8", "replace"))
        super()._build_tensors(start_offs, fields)


class GgufFile:
    """One open file. `tensors`: name -> the reader's tensor, whose numbers are still in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            reader = _Reader(path)
        except _CutError as error:
            raise ModelError(f"{path.name} cannot be read: it ends inside tensor {error}", _AGAIN) from None
        except Exception as error:  # noqa: BLE001  # damage shows as whatever numpy raises over wrong numbers
            raise ModelError(f"{path.name} cannot be read as GGUF: {error}", _AGAIN) from None
        self._fields: Mapping[str, ReaderField] = reader.fields
        self.tensors: dict[str, ReaderTensor] = {tensor.name: tensor for tensor in reader.tensors}
        self.architecture = str(self.need("general.architecture"))

    def get(self, name: str, default: Any = None) -> Any:
        """A metadata value as Python's own type; `default` when there is none."""
        field = self._fields.get(name)
        try:
            return default if field is None else field.contents()
        except (ValueError, IndexError) as error:
            raise ModelError(f"{self.path.name}: metadata {name} cannot be read: {error}", _AGAIN) from None

    def need(self, name: str) -> Any:
        """A metadata value. Raises ModelError when there is none."""
        value = self.get(name)
        if value is None:
            raise ModelError(f"{self.path.name} has no metadata {name}", "the file is incomplete: convert it again")
        return value

    def own(self, name: str, default: Any = None) -> Any:
        """A metadata value of the model's architecture: `<architecture>.<name>`."""
        return self.get(f"{self.architecture}.{name}", default)

    def numbers(self, name: str) -> NDArray[np.float32]:
        """A tensor dequantised, fp32, outermost dimension first. Raises ModelError, naming it, when it is missing or of
        a kind that nobody can dequantise."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise ModelError(f"tensor {name} is missing from {self.path.name}", "the file is incomplete")
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            kind = GGMLQuantizationType(tensor.tensor_type).name
            raise ModelError(f"tensor {name} is of type {kind}, which is not supported",
                             "use a file of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K tensors") from None
        shape = [int(size) for size in reversed(tensor.shape)]
        return np.require(values, np.float32, ["C", "W"]).reshape(shape)


_AGAIN = "fetch the file again"
