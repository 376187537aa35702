"""The center of this host as the other hosts know it, when exchanges in the background are compressed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from platoon_base.centers.hosts_means import is_finite
from platoon_base.centers.stripes import copy_all
from platoon_base.compression.packing import Packing
from platoon_base.courier.conversation import COPY, MOVE, Conversation
from platoon_base.layout import Layout

__all__ = ["Reference"]

Array = np.ndarray[Any, Any]


class Reference:
    """A copy of this host's center, which moves by what the other hosts get::

        q := encode(c - r)
        r := r + decode(q)          here, and on each host that has r

    A difference that a codec has dropped is in the next one, so that r follows c without residuals (Koloskova et al.
    2019, arXiv 1902.00340). The rule compares r, not c, with the references of the other hosts: then what they add up
    to stays the same, as with whole copies.

    Whole copies go to a host that has no r, and to all hosts after an overwrite or a mean, so that equal centers stay
    equal bit by bit; also while the center holds NaN, which a difference would not get rid of.

    Parameters
    ----------
    layout : Layout
    packing : Packing

    Attributes
    ----------
    values : list of ndarray
    """

    def __init__(self, layout: Layout, packing: Packing) -> None:
        self._packing = packing
        self.values = layout.empty()
        self._known: set[Conversation] = set()  # the links whose hosts have it
        self._stamp = 0

    def forget(self) -> None:
        """Send whole copies to all hosts the next time."""
        self._known = set()

    def follow(self, copy: Sequence[Array], links: Set[Conversation], stamp: int) -> memoryview | None:
        """Move to a copy of the center, which has a stamp.

        Return the difference for the links that have ``values``; None if none has.
        """
        if stamp != self._stamp or not all(map(is_finite, self.values)) or not all(map(is_finite, copy)):
            self._stamp, self._known = stamp, set()
        self._known &= links
        if not self._known:
            copy_all(self.values, copy)
            return None
        data = np.zeros(self._packing.nbytes, np.uint8)  # not reused: an earlier one may still be sent
        self._packing.advance(self.values, copy, data)
        return memoryview(data)  # type: ignore[arg-type]

    def send(self, conversation: Conversation, move: memoryview | None, whole: memoryview) -> None:
        """Send a host the difference, if it has what came before, or else a whole copy of ``values``."""
        if move is not None and conversation in self._known:
            conversation.post(MOVE, move)
        else:
            conversation.post(COPY, whole)
            self._known.add(conversation)
