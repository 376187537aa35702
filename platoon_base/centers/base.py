"""The protocols of all centers, and the type that names an element which would not have been finite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from platoon_base.centers.fragments import Fragments
from platoon_base.layout import Layout
from platoon_base.rules.center import Rule
from platoon_base.rules.outer import OuterRule

__all__ = ["Center", "CenterFactory", "NonFiniteElement", "RoundCenter"]

Array = np.ndarray[Any, Any]


class NonFiniteElement(NamedTuple):
    """An element of the center that was left unchanged because its new value would not have been finite.

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
    """The shared copy of the parameters, with which all workers synchronize.

    Arguments are lists of C-contiguous arrays, one for each parameter of the layout, in its order.

    Attributes
    ----------
    on_device : bool
        Whether the arrays are GpuArrays; otherwise ndarrays.
    whole : bool
        Whether the latest synchronization covered the whole center.
    """

    on_device: bool
    whole: bool

    def sync(self, rule: Rule, arrays: Sequence[Array], locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Apply the rule once between ``arrays``, changed in place, and the center.

        An element of the center that would not stay finite is left unchanged, and so is the local element.

        Returns
        -------
        NonFiniteElement or None
            The first element left out; a center on devices returns it from a later synchronization.

        Raises
        ------
        CollectiveTimeoutError
            If another worker held a part of the center for longer than ``timeout_s``.
        """
        ...

    def read(
        self, out: Sequence[Array], locked: bool, timeout_s: float, begin: bool = False, averaged: bool = False
    ) -> None:
        """Copy the center into ``out``; with ``begin`` reset the rule's local states to it, atomically.

        With ``averaged`` parameters get the average of the center, if the rule has one.
        """
        ...

    def write(self, values: Sequence[Array], locked: bool, timeout_s: float) -> None:
        """Overwrite the center with ``values``, and reset the rule's local states to them, atomically.

        Momentum, which is a center state that no local state follows, is set to zero at elements whose values change.
        A center state that workers follow stays.
        """
        ...

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Fill a new center with the initial values, and reset the rule's local states; before others attach.

        Parameters
        ----------
        values : sequence of array
        states : sequence of sequence of ndarray
            The rule's center states from a checkpoint: for each state one array for each parameter. States that are
            not given stay zero.
        """
        ...

    def finish(self) -> None:
        """Wait until this worker's calls have reached the center; on devices they are queued."""
        ...

    def settle(self) -> None:
        """Make the values readable for the controller; call it once all workers have finished synchronizing."""
        ...

    def close(self, over: bool = False) -> None:
        """Release the memory; a second call does nothing.

        ``over`` states that no worker uses the center any more: memory that cannot be freed may be reused then.
        """
        ...


class RoundCenter(Center, Protocol):
    """A center for an outer-step rule, with which all workers synchronize together in rounds.

    Attributes
    ----------
    fragments : Fragments
        The parts of the center that the rounds take in turn.
    """

    fragments: Fragments

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]], number: int = 0) -> None:
        """Fill a new center that comes after round ``number``; see `Center.fill`."""
        ...

    def contribute(self, arrays: Sequence[Array], part: float, timeout_s: float) -> NonFiniteElement | None:
        """Add this worker's progress in the next round's fragment since it copied that, except where it has changed.

        An element whose progress is not finite contributes nothing.

        Returns
        -------
        NonFiniteElement or None
            The first element left out.
        """
        ...

    def note_met(self, number: int, timeout_s: float) -> None:
        """Let nobody contribute to round ``number`` any more, which all have met for, though its step is made later."""
        ...

    def take_over(
        self, rule: OuterRule, arrays: Sequence[Array], number: int, timeout_s: float, apart: bool = False
    ) -> NonFiniteElement | None:
        """Make the outer step of round ``number`` where no other worker has, and copy its fragment to ``arrays``.

        They are the parameters, or ``apart`` the pieces of the fragment.

        Call it after all workers of the round have contributed, with the same number on each, greater than that of
        the previous round.
        """
        ...


class CenterFactory(Protocol):
    """Opens the center of a job.

    Attributes
    ----------
    location : str
        Where the center is: ``"host"`` or ``"device"``.
    """

    location: str

    def create(self, layout: Layout, rule: Rule, rank: int) -> Center:
        """Create the center, filled with zeros."""
        ...

    def attach(self, layout: Layout, rule: Rule, rank: int) -> Center:
        """Open the center that another worker created."""
        ...

    def unlink(self) -> None:
        """Remove the name of the center; its memory is freed once no process has it open."""
        ...
