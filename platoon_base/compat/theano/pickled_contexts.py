"""Repair of pickles of functions compiled for devices, as Blocks' Checkpoint makes them.

pygpu refuses to pickle the context that such a function contains. It is pickled by its name in
Theano.
"""

from __future__ import annotations

import copyreg
from types import ModuleType
from typing import Any


def install(gpuarray_type: ModuleType) -> None:
    """Register the pickling of contexts, if pygpu is installed."""
    pygpu = gpuarray_type.pygpu
    if pygpu is None:
        return
    get_context, name_of = gpuarray_type.get_context, gpuarray_type._name_for_ctx

    def reduce(context: Any) -> Any:
        return get_context, (name_of(context),)

    copyreg.pickle(pygpu.gpuarray.GpuContext, reduce)
