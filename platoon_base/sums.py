"""Sums of arrays in a given order, so that all processes that add the same arrays get equal bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.dtypes import sum_dtype

Array = np.ndarray[Any, Any]


def add_up(sources: Sequence[Array], out: Array) -> None:
    """Set ``out`` to the sum of arrays, in their order; half precision is added in float32.

    The caller ignores overflows, by `numpy.errstate`.
    """
    wide = sum_dtype(out.dtype)
    total = out if out.dtype == wide else np.empty(out.shape, wide)
    if len(sources) < 2:
        total[...] = sources[0] if sources else 0
    else:
        np.add(sources[0], sources[1], out=total, dtype=wide)
    for source in sources[2:]:
        np.add(total, source, out=total, dtype=wide)
    if total is not out:
        out[...] = total
