"""How the ranks of a group learn that it is broken: one rank writes the reason into shared memory, the others read it.

The texts of the errors that end a call stand here too.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from platoon_base.collectives.group_segment import GroupSegment
from platoon_base.collectives.host_exchange import EXCHANGE_BYTES, describe
from platoon_base.errors import ConfigurationError, PlatoonError, WorkerLostError
from platoon_base.system.text import to_bytes

__all__ = ["DIFFERED", "FAILED", "LOCK_BYTE", "GroupFailure", "listed"]

Array = np.ndarray[Any, Any]

LOCK_BYTE = 64  # of the segment; the rank that writes the reason holds its lock
_LOCK_S = 1.0  # how long a rank waits for that lock: its holder may be stopped
_REASON_BYTES = 3072
FAILED, DIFFERED = 1, 2  # how a group was broken
_REASON = slice(EXCHANGE_BYTES, EXCHANGE_BYTES + _REASON_BYTES)  # of the segment, within its first page


class GroupFailure:
    """Tells the other ranks of a group why it is broken, and reads what another rank has told.

    Parameters
    ----------
    shared : GroupSegment
    index : int
        This rank's index in the group.
    """

    def __init__(self, shared: GroupSegment, index: int) -> None:
        self._shared = shared
        self._ranks = shared.ranks
        self._rank = shared.ranks[index]

    def tell(self, exc: BaseException, text: str) -> None:
        """Break the group, so that nobody waits for this rank. The first reason stays; nothing happens after close.

        Parameters
        ----------
        exc : BaseException
            A `ConfigurationError` ends the calls of the others with the same text. Any other error ends them with
            `WorkerLostError`.
        text : str
        """
        self.write(DIFFERED if isinstance(exc, ConfigurationError) else FAILED, text)

    def write(self, how: int, text: str) -> None:
        """Write down how the group was broken, `FAILED` or `DIFFERED`, and why; see `tell`."""
        memory, segment = self._shared.memory, self._shared.segment
        if memory is None:
            return
        deadline = time.monotonic() + _LOCK_S
        while not memory.broken:  # or another rank breaks it at this moment
            try:
                if segment.try_lock(LOCK_BYTE):
                    if not memory.broken:
                        raw = to_bytes(text, _REASON_BYTES - 1)
                        segment.buffer[_REASON.start : _REASON.start + len(raw) + 1] = raw + b"\0"
                        memory.broken = how
                elif time.monotonic() >= deadline:
                    memory.broken = how
                else:
                    time.sleep(1e-3)
            finally:  # also if Ctrl-C comes before it is known whether the lock was free
                segment.unlock(LOCK_BYTE)

    def reason(self) -> PlatoonError:
        """Return the error for a group that is broken already."""
        text = self.written() or "its reason could not be told; look into the logs"
        if self._shared.open_memory.broken == DIFFERED:
            return ConfigurationError(text)
        return WorkerLostError(
            f"the collective of {listed(self._ranks)} is broken since a call of one of them failed: {text}"
        )

    def written(self) -> str:
        """Return the reason that was written down; empty if there is none."""
        return bytes(self._shared.segment.buffer[_REASON]).partition(b"\0")[0].decode(errors="replace")

    # The texts of errors. ``call`` is the number of the call that ended, counted from 1.

    def named(self, call: int, header: Array) -> str:
        """Name a call in a text, by its number, its rank and its `headline`."""
        return f"collective call {call} of rank {self._rank}, {describe(header)},"

    def refused(self, call: int, exc: BaseException) -> str:
        """Tell that this rank does not make a call."""
        return (
            f"rank {self._rank} refused its collective call {call}, and no other may take its place: "
            f"{exc if isinstance(exc, PlatoonError) else repr(exc)}"
        )

    def closed_meanwhile(self, call: int) -> WorkerLostError:
        """Return the error of a call during which this rank closed the collective."""
        return WorkerLostError(
            f"collective call {call} of rank {self._rank} cannot end: another thread or a signal handler of that rank "
            "closed this collective meanwhile; close it after the last call"
        )

    def mismatch(self, call: int, called: Mapping[int, Array]) -> ConfigurationError:
        """Return the error of a call that is not the same on all ranks; `Exchange.called` returns what they called."""
        did = [f"rank {self._ranks[index]} called {describe(header)}" for index, header in called.items()]
        return ConfigurationError(
            f"the ranks differ in collective call {call}: {'; '.join(did)}. Every rank must make the same calls in the "
            "same order, with arrays of the same shape and dtype"
        )


def listed(ranks: Iterable[int]) -> str:
    """List ranks in words, such as ``"ranks 0, 2"``."""
    numbers = [str(rank) for rank in ranks]
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
