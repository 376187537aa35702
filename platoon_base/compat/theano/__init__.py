"""Repairs of Theano 1.0.5, for its start and end in N processes, and for pickles from devices.

Each file states one fault, with its place in Theano's source, and the repair. No repair changes the
results of a compiled function.
"""

from __future__ import annotations

import copyreg
import importlib.abc
import importlib.machinery
import logging
import sys
import types
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Callable

from platoon_base.compat.theano import compile_ahead, compile_lock, module_cache
from platoon_base.system.imports import AfterImport, Body, spec_around

__all__ = ["REPAIRS", "VERIFIED", "HideMpi", "guarded", "install"]

_ASKS_FOR_MPI = "theano.tensor.io"


class HideMpi(importlib.abc.MetaPathFinder):
    """A finder for ``sys.meta_path`` that hides mpi4py from Theano.

    Theano (`theano/tensor/io.py`, line 99) would start MPI, which does not survive a fork: workers
    would hang at exit. A script that imports mpi4py itself is not affected.
    """

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


def pickle_contexts(gpuarray_type: ModuleType) -> None:
    """Pickle the contexts of devices by their names in Theano, as pygpu refuses to, if it is installed.

    Functions compiled for devices contain them, and Blocks' Checkpoint pickles such functions.
    """
    pygpu = gpuarray_type.pygpu
    if pygpu is None:
        return
    get_context, name_of = gpuarray_type.get_context, gpuarray_type._name_for_ctx

    def reduce(context: Any) -> Any:
        return get_context, (name_of(context),)

    copyreg.pickle(pygpu.gpuarray.GpuContext, reduce)


log = logging.getLogger(__name__)

# The last release of Theano; the repairs were checked against its source.
VERIFIED = "1.0.5"

REPAIRS: dict[str, Callable[[ModuleType], None]] = {
    "theano.gof.compilelock": compile_lock.install,
    "theano.gof.cmodule": module_cache.repair_files,
    "theano.gof.cc": module_cache.repair_keys,
    "theano.gof.vm": compile_ahead.install,
    "theano.gpuarray.type": pickle_contexts,
}


def install() -> None:
    """Repair each module of Theano when it is imported, or now if it was imported already."""
    if any(isinstance(finder, HideMpi) for finder in sys.meta_path):
        return
    repairs = {name: guarded(name, repair) for name, repair in REPAIRS.items()}
    late = [name for name in repairs if name in sys.modules]
    sys.meta_path[:0] = [AfterImport({name: repair for name, repair in repairs.items() if name not in late}), HideMpi()]
    for name in late:
        repairs[name](sys.modules[name])


def guarded(name: str, repair: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    """Return the repair for the verified release only; a missing name is logged."""

    def apply(module: ModuleType) -> None:
        version = getattr(sys.modules.get("theano"), "__version__", "unknown")
        if version.split("+")[0] != VERIFIED:
            log.info("Theano is %s, not %s: %s stays unpatched", version, VERIFIED, name)
            return
        try:
            repair(module)
        except AttributeError as exc:
            log.warning("%s stays unpatched; see docs/compat.md for the consequences: %s", name, exc)

    return apply
