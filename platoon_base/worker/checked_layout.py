"""A check that parameters still have the shapes and dtypes that they were shared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from platoon_base.centers.base import Center
from platoon_base.device_arrays import is_device_array, memory_order
from platoon_base.errors import LayoutMismatchError
from platoon_base.layout import Layout


class CheckedLayout:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._like: object = None  # Identifies the last arrays that were checked.

    def has(self, arrays: Sequence[Any]) -> bool:
        """Return whether the arrays were borrowed together and need no new check."""
        return self._like is not None and getattr(arrays, "like", None) is self._like

    def require(self, arrays: Sequence[Any], center: Center | None) -> None:
        """Raise `LayoutMismatchError` if a parameter's shape or dtype has changed since sharing."""
        if self.has(arrays):
            return
        specs = self._layout.specs
        if len(arrays) != len(specs):
            raise LayoutMismatchError(f"got {len(arrays)} arrays for {len(specs)} shared parameters: pass one for each")
        orders = getattr(center, "orders", [None] * len(specs))  # Only centers on devices have it.
        for spec, array, order in zip(specs, arrays, orders):
            if order is not None and not is_device_array(array):
                raise LayoutMismatchError(
                    f"{spec.name} was shared on the device: pass an array there, not {type(array)}"
                )
            if array.shape != spec.shape or array.dtype != spec.dtype:
                raise LayoutMismatchError(
                    f"{spec.name} is now {array.dtype}{list(array.shape)}, and was shared as "
                    f"{spec.dtype}{list(spec.shape)}: keep shapes and dtypes after "
                    "init_shared_params"
                )
            if order is not None and memory_order(array) != order:
                raise LayoutMismatchError(
                    f"{spec.name} has another memory order than when it was shared: pass an array with that order"
                )
        self._like = getattr(arrays, "like", None)
