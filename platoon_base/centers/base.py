"""Protocols of all centers, what they have in common, and the type of a non-finite element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from platoon_base.dtypes import Array
from platoon_base.layout import Layout
from platoon_base.rules.center import Rule
from platoon_base.rules.outer import OuterRule
from platoon_base.shm.segments import Name, Segment


class NonFiniteElement(NamedTuple):
    """Element of the center left unchanged because its new value would not have been finite."""

    parameter: int
    element: int


class Center(Protocol):
    """Shared copy of the parameters; arguments are C-contiguous arrays in the layout's order."""

    on_device: bool  # The arrays are GpuArrays, else ndarrays.

    @property
    def whole(self) -> bool:
        """Whether the latest synchronization covered the whole center."""
        ...

    # `sync` raises CollectiveTimeoutError if another worker holds a part for longer than
    # ``timeout_s``. A center on devices returns a skipped element from a later synchronization.
    def sync(self, rule: Rule, arrays: Sequence[Array], locked: bool, timeout_s: float) -> NonFiniteElement | None:
        """Apply the rule once between ``arrays``, in place, and the center."""
        ...

    def read(
        self, out: Sequence[Array], locked: bool, timeout_s: float, begin: bool = False, averaged: bool = False
    ) -> None:
        """Copy the center, or its average, into ``out``; ``begin`` also resets local states."""
        ...

    # Momentum is set to zero where values change; a center state that workers follow is kept.
    def write(self, values: Sequence[Array], locked: bool, timeout_s: float) -> None:
        """Overwrite the center, and reset the rule's local states to ``values``, atomically."""
        ...

    def fill(self, values: Sequence[Array], states: Sequence[Sequence[Array]]) -> None:
        """Fill a new center before others attach; states that are not given stay zero."""
        ...

    def finish(self) -> None:
        """Wait until this worker's calls have reached the center; on devices they are queued."""
        ...

    def take_refused(self) -> NonFiniteElement | None:
        """Return an element that a call has refused after it had returned, once."""
        ...

    def settle(self) -> None:
        """Make the values readable for the controller, after all workers have finished."""
        ...

    # With ``over``, memory that cannot be freed may be reused.
    def close(self, over: bool = False) -> None:
        """Release the memory; idempotent. With ``over``, no worker uses the center any more."""
        ...


class RoundCenter(Center, Protocol):
    """Center of an outer-step rule: all workers synchronize together in rounds."""

    def contribute(self, arrays: Sequence[Array], part: float, timeout_s: float) -> NonFiniteElement | None:
        """Add this worker's progress to the next round, unless it began from an older center."""
        ...

    def note_met(self, number: int, timeout_s: float) -> None:
        """Close round ``number`` to contributions: all workers are at its barrier."""
        ...

    # Call it after all workers of the round have contributed, with the same ``number`` on each,
    # which increases from round to round.
    def take_over(
        self, rule: OuterRule, arrays: Sequence[Array], number: int, timeout_s: float
    ) -> NonFiniteElement | None:
        """Make the outer step where no other worker has, and copy the center to ``arrays``."""
        ...


class OnHost:
    """What centers in the memory of the host have in common."""

    on_device = False

    def finish(self) -> None:
        """Do nothing: no calls are queued."""

    def take_refused(self) -> NonFiniteElement | None:
        """Return None: calls return what they refuse."""
        return None

    def settle(self) -> None:
        """Do nothing: the controller reads the same memory."""


class CenterFactory(Protocol):
    """Opens the center of a job."""

    location: str  # "host" or "device"

    def create(self, layout: Layout, rule: Rule, rank: int) -> Center:
        """Create the center, filled with zeros."""
        ...

    def attach(self, layout: Layout, rule: Rule, rank: int) -> Center:
        """Open the center that another worker created."""
        ...

    def unlink(self) -> None:
        """Remove the name of the center; its memory is freed once no process has it open."""
        ...


class Named:
    """What factories have in common: the name of a job's center, and who uses it."""

    location = "host"

    def __init__(self, name: Name, workers: int = 1, gone: Callable[[int], bool] = lambda rank: False) -> None:
        self.name = name
        self._workers, self._gone = workers, gone

    def unlink(self) -> None:
        Segment.unlink(self.name)
