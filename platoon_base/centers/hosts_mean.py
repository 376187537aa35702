"""How workers that stand still get the centers of all hosts to their mean: words in a center's memory."""

from __future__ import annotations

from typing import Any

from platoon_base.centers.overwrites import await_count

__all__ = ["HostsMean"]


class HostsMean:
    """The requests of one host's workers, and the latest that its courier has met.

    Parameters
    ----------
    header : structured scalar
        With ``wanted`` and ``reached``, in shared memory.
    """

    def __init__(self, header: Any) -> None:
        self._header = header

    @property
    def wanted(self) -> int:
        """The number of the latest request."""
        return int(self._header["wanted"])

    @property
    def reached(self) -> int:
        """The latest request after which this host's center has come to the mean."""
        return int(self._header["reached"])

    @reached.setter
    def reached(self, number: int) -> None:
        self._header["reached"] = number

    def wait(self, number: int, timeout_s: float) -> None:
        """Ask for it, and wait until this host's center is there; raises `CollectiveTimeoutError`.

        All workers of a host that have met ask by the same number, so it does not matter who comes first.
        """
        if self.wanted < number:
            self._header["wanted"] = number
        await_count(lambda: self.reached, number, timeout_s, "the centers of all hosts to come to their mean")
