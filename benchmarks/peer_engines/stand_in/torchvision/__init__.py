"""Stands where torchvision would, for vLLM: its text models import modules that name torchvision's transforms and never
call them. Every submodule exists, every name in one is a class that refuses to be made.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__version__ = "0.0.0"


class _Absent(type):
    """A class of names: any attribute of one is another, so that enumerations and defaults can be written down."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"torchvision.{cls.__name__} is not here: this environment serves text models only")


def _absent(name: str) -> Any:
    return _Absent(name, (), {})


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.__path__ = []
        module.__getattr__ = _names  # type: ignore[method-assign]  # PEP 562: names that the module lacks


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith("torchvision."):
            return None
        return importlib.machinery.ModuleSpec(fullname, _Loader(), is_package=True)


def _names(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _absent(name)


def __getattr__(name: str) -> Any:
    return _names(name)


sys.meta_path.append(_Finder())
