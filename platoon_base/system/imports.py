"""Imports: names that are imported when they are used, hooks after an import, entry points."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from platoon_base.system.environment import NO_KERNELS


def extension(name: str) -> Any:
    """Return a C extension of this package; None if PLATOON_NO_KERNELS is set, or no compiler built it."""
    if os.environ.get(NO_KERNELS):
        return None
    try:
        return importlib.import_module(f"platoon_base.{name}")
    except ImportError:
        return None  # `platoon doctor` reports it.


def lazy_names(package: str, homes: Mapping[str, str], modules: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return a package's ``__getattr__``, which imports names from their modules, and ``modules``, at first use."""
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            home = importlib.import_module(home_of[name])
        except AttributeError as exc:  # ``from package import name`` would hide this error.
            raise ImportError(f"cannot import {home_of[name]}: {exc}") from exc
        value = getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return get


Body = Callable[[types.ModuleType], None]


class AfterImport(importlib.abc.MetaPathFinder):
    """A finder that calls ``actions[name](module)`` once, after the body of that module has run."""

    def __init__(self, actions: Mapping[str, Callable[[types.ModuleType], None]]) -> None:
        self._actions = dict(actions)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._actions:
            return None

        def run(module: types.ModuleType, body: Body) -> None:
            body(module)
            # A spec may be requested without an import, so the action is removed only here.
            action = self._actions.pop(fullname, None)
            if action is not None:
                action(module)

        return spec_around(self, fullname, path, target, run)


def spec_around(
    finder: importlib.abc.MetaPathFinder,
    fullname: str,
    path: Sequence[str] | None,
    target: types.ModuleType | None,
    run: Callable[[types.ModuleType, Body], None],
) -> importlib.machinery.ModuleSpec | None:
    """Find a module with the finders after this one; ``run(module, body)`` executes its body."""
    behind = sys.meta_path.index(finder) + 1 if finder in sys.meta_path else len(sys.meta_path)
    finders = [other for other in sys.meta_path[behind:] if hasattr(other, "find_spec")]
    asked = (other.find_spec(fullname, path, target) for other in finders)
    spec = next((found for found in asked if found is not None), None)
    if spec is not None and spec.loader is not None:
        body = spec.loader.exec_module
        spec.loader.exec_module = lambda module: run(module, body)  # type: ignore[method-assign]
    return spec


# Importing `importlib.metadata` takes 25 ms, a fifth of the start of a worker; this takes 1 ms.


_LINE = re.compile(r"""([^=\s#;\[][^=]*?)\s*=\s*["']?([\w.]+(?:\s*:\s*[\w.]+)?)""")


def entry_points(group: str, source: Path | None = None) -> dict[str, str]:
    """Return the entry points of a group; a ``pyproject.toml`` in ``source`` has priority."""
    found = {}
    # The metadata of an editable installation may be old; a checkout on PYTHONPATH has none.
    if source is not None:
        found = _section(os.path.join(source, "pyproject.toml"), f'[project.entry-points."{group}"]')
    for folder in sys.path:
        for path in _metadata(folder or "."):
            for name, value in _section(path, f"[{group}]").items():
                found.setdefault(name, value)
    return found


def _metadata(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    folders = [name for name in names if name.endswith((".dist-info", ".egg-info"))]
    return [os.path.join(folder, name, "entry_points.txt") for name in folders]


def _section(path: str, header: str) -> dict[str, str]:
    """Read the names and values below a header; INI and simple TOML look alike."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError:
        return {}
    if header.encode() not in data:
        return {}
    lines = iter(data.decode(errors="replace").splitlines())
    found = {}
    for line in lines:
        if line.strip() == header:
            break
    for line in lines:
        if line.startswith("["):
            break
        match = _LINE.match(line.strip())
        if match:
            found[match[1].strip("\"' ")] = "".join(match[2].split())
    return found
