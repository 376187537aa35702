"""Lazy imports: a package imports the module of a name at the first use of the name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, str], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package for names in ``homes`` and submodules ``modules``."""

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            home = importlib.import_module(homes[name])
        except AttributeError as exc:  # ``from package import name`` would hide it.
            raise ImportError(f"cannot import {homes[name]}: {exc}") from exc
        value = getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return get
