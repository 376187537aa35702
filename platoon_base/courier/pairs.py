"""The numbered exchanges of two hosts, without input or output: which answers were sent, received and acknowledged.

In exchange n each of two couriers sends the other one answer: a copy of its center, or that it declines. The exchange
takes place if and only if both answers are copies, so both couriers decide it alike. A courier keeps its answer until
the other one has acknowledged it, and sends it again over a new link. Only then does it begin exchange n + 1. So a
link may stall or break at any moment: an answer is neither lost nor used twice, and never meets that of another
exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from platoon_base.links.stream import BrokenStreamError

__all__ = ["OwnCopy", "Pair"]

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class OwnCopy:
    """A copy of this host's center, as other hosts get it.

    Attributes
    ----------
    data : memoryview
        The memory of ``values``.
    values : list of ndarray
    stamp, written : int
        Of the center when it was copied, see `platoon_base.centers.overwrites`.
    workers, total : int
        The live workers of this host, and of all hosts in its exchange, by which copies are weighted.
    is_finite : bool
    """

    data: memoryview
    values: list[Array]
    stamp: int
    written: int
    workers: int
    total: int
    is_finite: bool


class Pair:
    """The exchanges with one other host, as this host knows them.

    Parameters
    ----------
    life : int
        A random number, by which the other courier knows whether this object is the one that it has met before.

    Attributes
    ----------
    life : int
    number : int
        The exchange that is under way, or comes next.
    own : OwnCopy or None
        This host's answer to it; None before it has answered, and if it has declined.
    declined : bool
        Whether it has declined.
    has_theirs : bool
        Whether the other host's answer was received and used.
    is_sent : bool
        Whether this host's answer was sent over the present link.
    is_ready : bool
        Whether the other host has said over the present link which answers it has.
    """

    def __init__(self, life: int) -> None:
        self.life = life
        self._their_life: int | None = None
        self.is_ready = self._has_met = False
        self._begin_again()

    def _begin_again(self) -> None:
        self.number = 1
        self.own: OwnCopy | None = None
        self.declined = self.has_theirs = self.is_sent = self._is_acknowledged = False

    def connect(self) -> None:
        """Begin with a new link."""
        self.is_ready = self._has_met = self.is_sent = False

    @property
    def has_met(self) -> bool:
        """Whether the other courier has sent its number over the present link."""
        return self._has_met

    def meet(self, life: int) -> bool:
        """Take the other courier's random number; return whether it is another one than before."""
        is_new = life != self._their_life
        if is_new:
            self._their_life = life
            self._begin_again()
        self._has_met = True
        return is_new

    @property
    def has_answered(self) -> bool:
        """Whether this host has answered."""
        return self.declined or self.own is not None

    @property
    def is_idle(self) -> bool:
        """Whether this host may answer the next exchange."""
        return self.is_ready and not self.has_answered

    @property
    def waits(self) -> bool:
        """Whether the other host may use this host's copy, and its answer has not been received."""
        return self.own is not None and not self.has_theirs

    @property
    def must_send(self) -> bool:
        """Whether this host's answer has to be sent over the present link."""
        return self.is_ready and self.has_answered and not self.is_sent and not self._is_acknowledged

    @property
    def received(self) -> int:
        """The latest exchange whose answer by the other host was received, which acknowledges it."""
        return self.number if self.has_theirs else self.number - 1

    def answer(self, own: OwnCopy | None) -> None:
        """Answer the exchange with a copy, or decline it; the caller sends that and sets `is_sent`."""
        self.own, self.declined = own, own is None

    def take_acknowledgement(self, number: int) -> None:
        """Take the latest number that the other host has received."""
        is_acknowledged = number == self.number and self.has_answered
        if number != self.number - 1 and not is_acknowledged:
            raise BrokenStreamError(f"got exchange {number} acknowledged, and exchange {self.number} is under way")
        self.is_ready = True
        self._is_acknowledged = is_acknowledged
        self._advance()

    def require(self, number: int) -> None:
        """Raise `BrokenStreamError` if an answer does not belong to the exchange under way."""
        if number != self.number or self.has_theirs:
            raise BrokenStreamError(f"got a copy of exchange {number}, and exchange {self.number} is under way")

    def take_answer(self) -> None:
        """Record that the other host's answer was used; the caller acknowledges it by `received`."""
        self.has_theirs = True
        self._advance()

    def _advance(self) -> None:
        if self.has_answered and self.has_theirs and self._is_acknowledged:
            self.number += 1
            self.own = None
            self.declined = self.has_theirs = self.is_sent = self._is_acknowledged = False
