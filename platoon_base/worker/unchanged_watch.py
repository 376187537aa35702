"""A warning about parameters that never change between synchronizations: training changes other arrays."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from platoon_base.fingerprint import checksum

__all__ = ["UnchangedWatch"]

log = logging.getLogger(__name__)

_PATIENCE = 3  # two synchronizations in a row, as at the end of an epoch, mean nothing


class UnchangedWatch:
    """Watches parameters until each has changed once, by a checksum; after that it costs nothing.

    Parameters
    ----------
    names : sequence of str
        Of the parameters.
    rank : int
        For the message.
    """

    def __init__(self, names: Sequence[str], rank: int) -> None:
        self._names = list(names)
        self._rank = rank
        self._sums: dict[int, int] = {}
        self._watched = set(range(len(names)))
        self._seen = 0

    def before_sync(self, arrays: Sequence[Any]) -> None:
        """Compare the values with those after the synchronization before; warn once about those that stay the same."""
        if not self._watched:
            return
        self._watched -= {i for i, before in self._sums.items() if checksum(arrays[i]) != before}
        self._seen += bool(self._sums)
        if self._watched and self._seen >= _PATIENCE:
            names = ", ".join(self._names[i] for i in sorted(self._watched))
            self._watched = set()
            log.warning(
                "rank %d: %s did not change in %d synchronizations, so what this worker learns of it reaches nobody. "
                "If training puts other arrays in the place of those that were shared (w = w - step), change their "
                "values instead (w -= step, or w[...] = new); leave out of params what is not trained",
                self._rank,
                names,
                _PATIENCE,
            )

    def after_sync(self, arrays: Sequence[Any]) -> None:
        """Remember the values."""
        self._watched = {i for i in self._watched if arrays[i].size}  # nothing is learnt of the empty ones
        self._sums = {i: checksum(arrays[i]) for i in self._watched}
