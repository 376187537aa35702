"""Residuals of arrays whose averages are compressed between hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["ErrorFeedback"]

Array = np.ndarray[Any, Any]


class ErrorFeedback:
    """The residual of an array that is averaged repeatedly: each average includes the earlier rest.

    Make one for each array and pass it to each all-reduce of that array. It restarts at zero if the
    shape, the dtype or the operation changes. It uses the memory of the array on each host if
    `platoon launch --hosts-compression` is used, otherwise none. Arrays of up to 64 KiB are sent
    unchanged, and so are arrays on GPUs other than float32. ``latest`` is the residual of this
    rank, shape (n,), for the parts that it exchanges with other hosts. Seide et al., 1-bit
    stochastic gradient descent, Interspeech 2014; Karimireddy et al., arXiv 1901.09847.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self.latest: Any = np.zeros(0, np.float32)

    def residual(self, key: Any, size: int, dtype: Any) -> Array:
        """Return this rank's residual for a key, shape (size,); zeros if the key is new."""
        found: Array = self.kept(key, lambda: np.zeros(size, dtype))
        return found

    def kept(self, key: Any, zeros: Callable[[], Any]) -> Any:
        """Return the value for a key; the result of ``zeros`` if the key is new."""
        if key != self._key:
            self._key, self.latest = key, zeros()
        return self.latest
