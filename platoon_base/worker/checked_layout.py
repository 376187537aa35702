"""Checks of shared parameters: they keep their shapes and dtypes, and they change."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from platoon_base.centers.base import Center
from platoon_base.device_arrays import is_device_array, memory_order
from platoon_base.devices.isolation import some_names
from platoon_base.errors import LayoutMismatchError
from platoon_base.fingerprint import checksum
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


log = logging.getLogger(__name__)

_MOST_NAMES = 10


class UnchangedWatch:
    """Compares checksums of parameters until each has changed once."""

    def __init__(self, names: Sequence[str], rank: int, patience: int = 3, frozen: Collection[int] = ()) -> None:
        # Two synchronizations without a step between them, as at an epoch's end, are no evidence.
        self._names, self._patience = list(names), patience
        self._rank = rank
        self._sums: dict[int, int] = {}
        self._watched = set(range(len(names))) - set(frozen)
        self._seen = 0

    def before_sync(self, arrays: Sequence[Any]) -> None:
        """Compare with the previous synchronization; warn once about unchanged parameters."""
        if not self._watched:
            return
        self._watched -= {i for i, before in self._sums.items() if checksum(arrays[i]) != before}
        self._seen += bool(self._sums)
        if self._watched and self._seen >= self._patience:
            names = some_names([self._names[i] for i in sorted(self._watched)], _MOST_NAMES)
            self._watched = set()
            log.warning(
                "rank %d: %s did not change in %d synchronizations, so this worker does not "
                "contribute to the center. If training replaces the shared arrays with new ones "
                "(w = w - step), change their values instead (w -= step, or w[...] = new). Leave "
                "parameters that are not trained out of params",
                self._rank,
                names,
                self._patience,
            )

    def after_sync(self, arrays: Sequence[Any]) -> None:
        self._watched = {i for i in self._watched if arrays[i].size}  # Empty arrays cannot change.
        self._sums = {i: checksum(arrays[i]) for i in self._watched}
