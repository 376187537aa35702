"""A warning about parameters that never change between synchronizations."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from platoon_base.devices.isolation import some_names
from platoon_base.fingerprint import checksum

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
