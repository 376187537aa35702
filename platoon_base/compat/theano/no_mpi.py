"""Repair that hides mpi4py from Theano (`theano/tensor/io.py`, line 99), which would start MPI.

Forked workers would hang at exit, since MPI does not survive a fork. A script that imports mpi4py
itself is not affected.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

from platoon_base.system.imports import Body, spec_around

__all__ = ["HideMpi"]

_ASKS_FOR_MPI = "theano.tensor.io"


class HideMpi(importlib.abc.MetaPathFinder):
    """A finder for ``sys.meta_path`` that hides mpi4py from Theano only."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _ASKS_FOR_MPI or "mpi4py" in sys.modules:
            return None
        return spec_around(self, fullname, path, target, _run_without_mpi)


def _run_without_mpi(module: types.ModuleType, body: Body) -> None:
    sys.modules["mpi4py"] = None  # type: ignore[assignment]
    try:
        body(module)
    finally:
        del sys.modules["mpi4py"]
