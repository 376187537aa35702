"""Rules applied to memory in one pass: by the C extension where it can, by NumPy block by block otherwise.

Both forms give the same bits, and both leave an element alone whose center value would not stay finite.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Optional

import numpy as np

from platoon_base.errors import ConfigurationError
from platoon_base.rules import Rule

_kernels: Any = None
if not os.environ.get("PLATOON_NO_KERNELS"):
    try:
        from platoon_base import _kernels
    except ImportError:
        pass  # no compiler at installation: NumPy does it, about half as fast; `platoon doctor` says so

__all__ = ["BLOCK", "HAVE_FUSED", "Plan"]

Array = np.ndarray[Any, Any]
Fused = Callable[..., Optional[tuple[int, int]]]  # noqa: UP045

BLOCK = 4096  # elements that the NumPy form treats at a time, so that its copies stay in the first-level cache
HAVE_FUSED = _kernels is not None


class Plan:
    """A synchronization prepared once for the fixed memory of a stripe, and run often.

    Parameters
    ----------
    center : sequence of ndarray, each 1-d, contiguous, of a float dtype
        One array for each piece of the stripe.
    local_states, center_states : sequence of sequence of ndarray
        For each state buffer of the rule its pieces, like those of the center.
    """

    def __init__(
        self,
        center: Sequence[Array],
        local_states: Sequence[Sequence[Array]] = (),
        center_states: Sequence[Sequence[Array]] = (),
    ) -> None:
        self._center = list(center)
        self._local_states = [tuple(state[i] for state in local_states) for i in range(len(center))]
        self._center_states = [tuple(state[i] for state in center_states) for i in range(len(center))]
        dtypes = {c.dtype.name for c in center}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else None  # the table has one kernel
        fixed = [(c, *states) for c, states in zip(self._center, self._local_states)]
        # Columns: address of x, of c, of each local state; number of elements.
        rows = [[0, *(a.ctypes.data for a in arrays), arrays[0].size] for arrays in fixed]
        self._table = np.array(rows, dtype=np.int64).reshape(len(rows), -1)
        self._address = self._table.ctypes.data
        self._x_column = self._table[:, 0]

    def run(self, rule: Rule, local: Sequence[Array]) -> tuple[int, int] | None:
        """Apply ``rule`` once between the pieces of ``local`` and those of the center, in place.

        Parameters
        ----------
        rule : Rule
        local : sequence of ndarray
            C-contiguous, one for each piece, with the center's dtypes and sizes.

        Returns
        -------
        (piece, element) of the first center value that would not have been finite, or None. Such elements are left
        as they were on all sides.

        Raises
        ------
        ConfigurationError
            If the pieces do not fit those of the center.
        """
        self._require_fit(local)
        fused = self._fused(rule)
        if fused is None:
            return self._run_numpy(rule, local)
        self._x_column[:] = [x.__array_interface__["data"][0] for x in local]
        return fused(self._address, len(self._center), *rule.kernel_args())

    def _require_fit(self, local: Sequence[Array]) -> None:
        if len(local) != len(self._center):
            raise ConfigurationError(f"got {len(local)} arrays, the center has {len(self._center)}")
        for x, c in zip(local, self._center):
            if x.size != c.size or x.dtype != c.dtype or not x.flags.c_contiguous:
                raise ConfigurationError(
                    f"got a {'' if x.flags.c_contiguous else 'non-contiguous '}{x.dtype} array of {x.size} elements, "
                    f"the center's has {c.size} of {c.dtype}: pass C-contiguous arrays of the shared parameters' dtypes"
                )

    def _fused(self, rule: Rule) -> Fused | None:
        if rule.kernel is None or self._dtype is None or rule.center_state:
            return None
        return _find_fused(rule.kernel, self._dtype)

    def _run_numpy(self, rule: Rule, local: Sequence[Array]) -> tuple[int, int] | None:
        first = None
        for piece, x in enumerate(local):
            fixed = (self._center[piece], self._local_states[piece], self._center_states[piece])
            for start in range(0, x.size, BLOCK):
                refused = _run_block(rule, x, *fixed, slice(start, start + BLOCK))
                if refused is not None and first is None:
                    first = (piece, start + refused)
        return first


@functools.lru_cache(maxsize=None)
def _find_fused(kernel: str, dtype: str) -> Fused | None:
    found: Fused | None = getattr(_kernels, f"{kernel}_{dtype}", None)
    return found


def _run_block(
    rule: Rule,
    local: Array,
    center: Array,
    local_states: tuple[Array, ...],
    center_states: tuple[Array, ...],
    block: slice,
) -> int | None:
    """Apply the rule's NumPy form to copies of one block, and keep the elements whose center stays finite."""
    arrays = [local, center, *local_states, *center_states]
    copies = [array[block].copy() for array in arrays]
    split = 2 + len(local_states)
    with np.errstate(over="ignore", invalid="ignore"):
        rule.sync(copies[0], copies[1], tuple(copies[2:split]), tuple(copies[split:]))
    finite = np.isfinite(copies[1])
    if finite.all():
        for array, copy in zip(arrays, copies):
            array[block] = copy
        return None
    for array, copy in zip(arrays, copies):
        np.copyto(array[block], copy, where=finite)
    return int(np.argmin(finite))
