"""Residuals of arrays whose averages are compressed between hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["ErrorFeedback"]

Array = np.ndarray[Any, Any]


class ErrorFeedback:
    """The residual of an array that is averaged again and again: what was not sent is part of the next average.

    Make one for each array, and pass it to each all-reduce of that array. It begins at zero, and does so again if the
    shape, the dtype or the operation changes. It takes the memory of the array on each host, once it has been used with
    `platoon launch --hosts-compression`, and none otherwise. Arrays of up to 64 KiB travel as they are, and so do those
    on GPUs that are not of float32.

    Attributes
    ----------
    latest : ndarray, shape (n,), or memory of a device
        The residual of this rank, for the parts that it exchanges with other hosts.

    References
    ----------
    Seide et al.: 1-bit stochastic gradient descent, Interspeech 2014. Karimireddy et al.: Error feedback fixes SignSGD
    and other gradient compression schemes, arXiv 1901.09847.

    Examples
    --------
    >>> feedback = ErrorFeedback()                                                  # doctest: +SKIP
    >>> for batch in batches:                                                       # doctest: +SKIP
    ...     gradient = gradient_of(batch)
    ...     worker.all_reduce(gradient, "mean", gradient, feedback=feedback)
    """

    def __init__(self) -> None:
        self._key: Any = None
        self.latest: Any = np.zeros(0, np.float32)

    def residual(self, key: Any, size: int, dtype: Any) -> Array:
        """Return the residual of this rank, shape (size,), of calls with this key; zeros if the key is another one."""
        found: Array = self.kept(key, lambda: np.zeros(size, dtype))
        return found

    def kept(self, key: Any, zeros: Callable[[], Any]) -> Any:
        """Return what is kept of calls with this key; what ``zeros`` makes if the key is another one."""
        if key != self._key:
            self._key, self.latest = key, zeros()
        return self.latest
