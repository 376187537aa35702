"""The numbered exchanges of two hosts, without input or output.

In exchange n each courier sends the other one answer: a copy of its center, or that it declines.
The exchange takes place if and only if both answers are copies, so both decide alike. A courier
keeps its answer until the other has acknowledged it, and resends it over a new link; then it begins
exchange n + 1. So a link may break at any moment: no answer is lost, used twice, or matched with
another exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from platoon_base.links.stream import BrokenStreamError

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class OwnCopy:
    """A copy of this host's center for other hosts; ``data`` is the memory of ``values``.

    ``stamp`` and ``written`` belong to the copied center, see `platoon_base.centers.across_hosts`.
    The weights are ``workers``, live on this host, and ``total``, those of all hosts in its
    exchange.
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

    The other courier recognizes this object by ``life``, a random number. ``number`` is the current
    exchange. ``own`` is this host's answer: None before it, and if ``declined``. ``has_theirs``:
    the other host's answer was used. ``is_sent``: this host's answer was sent over the present
    link. ``is_ready``: the other host has reported over the present link which answers it has.
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
        self.is_ready = self._has_met = self.is_sent = False

    @property
    def has_met(self) -> bool:
        """Whether the other courier has sent its random number over the present link."""
        return self._has_met

    def meet(self, life: int) -> bool:
        """Record the other courier's random number; return whether it has changed."""
        is_new = life != self._their_life
        if is_new:
            self._their_life = life
            self._begin_again()
        self._has_met = True
        return is_new

    @property
    def has_answered(self) -> bool:
        return self.declined or self.own is not None

    @property
    def is_idle(self) -> bool:
        return self.is_ready and not self.has_answered

    @property
    def waits(self) -> bool:
        """Whether the other host may use this host's copy and has not answered yet."""
        return self.own is not None and not self.has_theirs

    @property
    def must_send(self) -> bool:
        """Whether this host's answer must be sent over the present link."""
        return self.is_ready and self.has_answered and not self.is_sent and not self._is_acknowledged

    @property
    def received(self) -> int:
        """The latest exchange for which this host has received the answer; acknowledges it."""
        return self.number if self.has_theirs else self.number - 1

    def answer(self, own: OwnCopy | None) -> None:
        """Answer with a copy, or decline; the caller sends the answer and sets `is_sent`."""
        self.own, self.declined = own, own is None

    def take_acknowledgement(self, number: int) -> None:
        """Record the latest exchange for which the other host has received this host's answer."""
        is_acknowledged = number == self.number and self.has_answered
        if number != self.number - 1 and not is_acknowledged:
            raise BrokenStreamError(f"got exchange {number} acknowledged, and exchange {self.number} is under way")
        self.is_ready = True
        self._is_acknowledged = is_acknowledged
        self._advance()

    def require(self, number: int) -> None:
        """Raise `BrokenStreamError` if an answer does not belong to the current exchange."""
        if number != self.number or self.has_theirs:
            raise BrokenStreamError(f"got a copy of exchange {number}, and exchange {self.number} is under way")

    def take_answer(self) -> None:
        """Record that the other host's answer was used; the caller then sends `received`."""
        self.has_theirs = True
        self._advance()

    def _advance(self) -> None:
        if self.has_answered and self.has_theirs and self._is_acknowledged:
            self.number += 1
            self.own = None
            self.declined = self.has_theirs = self.is_sent = self._is_acknowledged = False
