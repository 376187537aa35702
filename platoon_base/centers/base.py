"""The protocols of all centers, and the report of an element that was left out, since it would not be finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from platoon_base.layout import Layout
from platoon_base.rules.center import Rule
from platoon_base.rules.outer import OuterRule

__all__ = ["Center", "CenterFactory", "NonFiniteElement", "RoundCenter"]

Array = np.ndarray[Any, Any]


class NonFiniteElement(NamedTuple):
    """An element of the center whose new value would not have been finite, so that it was left as it was.

    Attributes
    ----------
    parameter : int
        Index of the parameter in the layout.
    element : int
        Index into the flattened parameter.
    """

    parameter: int
    element: int


class Center(Protocol):
    """The shared parameters that all workers synchronize with.

    Arrays go in and out as one C-contiguous array for each parameter of the layout, in its order.

    Attributes
    ----------
    on_device : bool
        Whether the arrays are GpuArrays, or else ndarrays.
    whole : bool
        Whether the latest synchronization reached all of the center.
    """

    on_device: bool
    whole: bool

    def sync(self, rule: Rule, arrays: Sequence[Array], locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Apply the rule once between ``arrays``, changed in place, and the center.

        An element of the center that would not stay finite is left as it was, and so is the local value
        behind it.

        Returns
        -------
        NonFiniteElement or None
            The first element left out; a center on devices tells of it at a later synchronization.

        Raises
        ------
        CollectiveTimeoutError
            If another worker held a part of the center for longer than ``timeout_s``.
        """
        ...

    def read(self, out: Sequence[Array], locked: bool, timeout_s: float, begin: bool = False) -> None:
        """Copy the center into ``out``; with ``begin`` start the rule's states on this worker, at the same moment."""
        ...

    def write(self, values: Sequence[Array], locked: bool, timeout_s: float) -> None:
        """Put ``values`` in place of the center's, and start the rule's states on this worker, at the same moment.

        Momentum, which is a center state that no local state follows, ends where the values are others, element by
        element. A state that workers follow stays.
        """
        ...

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Give a new center its first values, and start the rule's states on this worker; before others attach.

        Parameters
        ----------
        values : sequence of array
        states : sequence of sequence of ndarray
            For each of the rule's buffers beside the center one array for each parameter, as a checkpoint holds them;
            buffers that are not given stay full of zeros.
        """
        ...

    def finish(self) -> None:
        """Wait until the center has all values that this worker gave it; on devices calls are queued."""
        ...

    def settle(self) -> None:
        """Make the values readable from outside, once all workers have finished and none synchronizes any more."""
        ...

    def close(self, over: bool = False) -> None:
        """Release the memory; a second call does nothing.

        With ``over`` no worker uses the center any more, so that memory which must not be freed may serve the next one.
        """
        ...


class RoundCenter(Center, Protocol):
    """A center for an outer-step rule, by which all workers synchronize together in rounds."""

    def contribute(self, arrays: Sequence[Array], part: float, timeout_s: float) -> NonFiniteElement | None:
        """Add this worker's progress since it took the center over, wherever it began from the center as it is.

        An element whose progress is not finite contributes nothing.

        Returns
        -------
        NonFiniteElement or None
            The first element left out.
        """
        ...

    def take_over(
        self, rule: OuterRule, arrays: Sequence[Array], number: int, timeout_s: float
    ) -> NonFiniteElement | None:
        """Set ``arrays`` to the center after round ``number``, and make the outer step where nobody has made it yet.

        All workers of a round have contributed before one of them calls this, with the same number, which is greater
        than that of the round before.
        """
        ...


class CenterFactory(Protocol):
    """Opens the center of a job.

    Attributes
    ----------
    location : str
        Where the center lies: ``"host"`` or ``"device"``.
    """

    location: str

    def create(self, layout: Layout, rule: Rule, rank: int) -> Center:
        """Make the center, full of zeros."""
        ...

    def attach(self, layout: Layout, rule: Rule, rank: int) -> Center:
        """Open the center that another worker made."""
        ...

    def unlink(self) -> None:
        """Let nobody open the center any more: its memory goes with the last worker that has it open."""
        ...
