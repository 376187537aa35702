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
        calls, lefts = [liveness.call_word(rank) for rank in others], [liveness.left_word(rank) for rank in others]
        self._words = [call_word, *calls, *lefts]  # whose memory is read
        fd, locks = liveness.locks(others)
        rows = [(call.ctypes.data, left.ctypes.data, lock) for call, left, lock in zip(calls, lefts, locks)]
        table = np.array(rows, np.uint64)
        self._address = _guard.start(
            fd, call_word.ctypes.data, table.ctypes.data, len(rows), function, argument, GRACE_S
        )
        self._stopped = False
        self._deadline = ctypes.c_double.from_address(self._address)

    def expect(self, deadline_s: float) -> None:
        """Say until when the call that begins may wait for ranks that live, by the monotonic clock."""
        self._deadline.value = deadline_s

    @property
    def ended(self) -> bool:
        """Whether the wait was ended: what it was for can be used no more."""
        return bool(_guard.ended(self._address))

    def end(self) -> None:
        """End the wait now, unless that was done, or nobody guards any more."""
        _guard.end(self._address)

    def stop(self) -> None:
        """Guard no more; a second call does nothing."""
        if not self._stopped:
            self._stopped = True
            _guard.stop(self._address)
