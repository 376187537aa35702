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

    def want(self) -> int:
        """Ask for it, and return the number of the request; two workers that do so at once may have the same one."""
        number = self.wanted + 1
        self._header["wanted"] = number
        return number

    def wait(self, timeout_s: float) -> None:
        """Ask for it, and wait until this host's center is there; raises `CollectiveTimeoutError`."""
        number = self.want()
        await_count(lambda: self.reached, number, timeout_s, "the centers of all hosts to come to their mean")
