"""Repairs of Theano 1.0.5, for its start and end in N processes, and for pickles from devices.

Each file states one fault, with its place in Theano's source, and the repair. No repair changes the
results of a compiled function.
"""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Callable

from platoon_base.compat.theano import cache_files, cache_keys, compile_ahead, compile_lock, pickled_contexts
from platoon_base.compat.theano.no_mpi import HideMpi
from platoon_base.system.imports import AfterImport

__all__ = ["REPAIRS", "VERIFIED", "guarded", "install"]

log = logging.getLogger(__name__)

# The last release of Theano; the repairs were checked against its source.
VERIFIED = "1.0.5"

REPAIRS: dict[str, Callable[[ModuleType], None]] = {
    "theano.gof.compilelock": compile_lock.install,
    "theano.gof.cmodule": cache_files.install,
    "theano.gof.cc": cache_keys.install,
    "theano.gof.vm": compile_ahead.install,
    "theano.gpuarray.type": pickled_contexts.install,
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
