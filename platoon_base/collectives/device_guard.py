"""A guard in C beside `DeviceWatch`, for waits in which a framework keeps the interpreter's lock.

torch waits for a device with that lock held where it needs a number on the host, as Keras's SGD does for its learning
rate. No thread of Python runs meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from platoon_base.shm.liveness import Liveness

_guard: Any = None  # the module in C, if it is there
with contextlib.suppress(ImportError):
    _guard = importlib.import_module("platoon_base._guard")

__all__ = ["HAVE_GUARD", "DeviceGuard"]

HAVE_GUARD = _guard is not None
GRACE_S = 3.0  # in which `DeviceWatch`, which knows the reason, ends the wait itself if it can run


class DeviceGuard:
    """Ends the wait of a device for ranks that are gone, if nobody does so within `GRACE_S`.

    Parameters
    ----------
    others : sequence of int
        The other ranks of the group, as those of the job.
    liveness : Liveness
    call_word : ndarray, shape (1,) int64
        See `DeviceWatch`.
    function, argument : int
        Addresses: what is called to end the wait, in C, and its argument.
    """

    def __init__(self, others: Sequence[int], liveness: Liveness, call_word: Any, function: int, argument: int) -> None:
        self._words = [call_word, *(liveness.call_word(rank) for rank in others)]  # whose memory is read
        fd, locks = liveness.locks(others)
        pairs = [(word.ctypes.data, lock) for word, lock in zip(self._words[1:], locks)]
        table = np.array(pairs, np.uint64).reshape(-1, 2)
        self._address = _guard.start(
            fd, call_word.ctypes.data, table.ctypes.data, len(pairs), function, argument, GRACE_S
        )
        self._deadline = ctypes.c_double.from_address(self._address)

    def expect(self, deadline_s: float) -> None:
        """Say until when the call that begins may wait for ranks that live, by the monotonic clock."""
        self._deadline.value = deadline_s

    def end(self) -> None:
        """End the wait now, unless that was done."""
        if self._address:
            _guard.end(self._address)

    def stop(self) -> None:
        """Guard no more; a second call does nothing."""
        address, self._address = self._address, 0
        if address:
            del self._deadline
            _guard.stop(address)
