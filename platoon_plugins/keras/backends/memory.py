"""The memory of a value that a back end does not let NumPy write to."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["writable"]

Array = np.ndarray[Any, Any]


def writable(view: Array) -> Array:
    """Return an array on the memory of a view that is read-only; it keeps that memory as the view does.

    Call it only where nobody else has seen the value: back ends take it that their values do not change.
    """
    array: Array = np.asarray(_Writable(view))
    return array


class _Writable:
    def __init__(self, view: Array) -> None:
        self._view = view  # it lives as long as an array is made of this
        interface = view.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
