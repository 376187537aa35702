"""Run a function on a module right after its first import."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Callable

__all__ = ["AfterImport", "Body", "spec_around"]

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
