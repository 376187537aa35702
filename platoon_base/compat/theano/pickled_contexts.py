"""Pickles of functions that are compiled for devices, which Blocks' Checkpoint makes.

The fault. A function that was compiled for a device refers to the device's context: pygpu refuses to pickle it
("Cannot pickle GpuContext object"), although ``gpuarray/type.py:911`` pickles GpuArrays.

The cure. A context is pickled as the name by which Theano knows it, and loaded as the context of that name.
"""

from __future__ import annotations

import copyreg
from types import ModuleType
from typing import Any

__all__ = ["install"]


def install(gpuarray_type: ModuleType) -> None:
    """Let contexts be pickled; without pygpu there are none."""
    pygpu = gpuarray_type.pygpu
    if pygpu is None:
        return
    get_context, name_of = gpuarray_type.get_context, gpuarray_type._name_for_ctx

    def reduce(context: Any) -> Any:
        return get_context, (name_of(context),)

    copyreg.pickle(pygpu.gpuarray.GpuContext, reduce)
