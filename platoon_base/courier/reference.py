"""The center of this host as other hosts know it, for compressed exchanges in the background."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from platoon_base.centers.across_hosts import is_finite
from platoon_base.centers.stripes import copy_all
from platoon_base.compression.packing import Packing
from platoon_base.courier.conversation import COPY, MOVE, Conversation
from platoon_base.layout import Layout

Array = np.ndarray[Any, Any]


class Reference:
    """A copy of this host's center that moves by what the other hosts decode::

        q := encode(c - r)
        r := r + decode(q)          here, and on each host that has r

    The next difference includes what a codec has dropped, so r follows c without residuals
    (Koloskova et al. 2019, arXiv 1902.00340). The rule compares r, not c, with the references of
    the other hosts: their weighted sum is then preserved, as with whole copies. Whole copies are
    sent to hosts without r, and to all hosts after an overwrite or a mean, so equal centers stay
    bitwise equal; also while the center holds NaN, which differences would keep.
    """

    def __init__(self, layout: Layout, packing: Packing) -> None:
        self._packing = packing
        self.values = layout.empty()
        self._known: set[Conversation] = set()  # Links of hosts that have ``values``.
        self._stamp = 0

    def follow(self, copy: Sequence[Array], links: Set[Conversation], stamp: int) -> memoryview | None:
        """Move to a copy of the center; return the difference for links that have ``values``."""
        if stamp != self._stamp or not all(map(is_finite, self.values)) or not all(map(is_finite, copy)):
            self._stamp, self._known = stamp, set()
        self._known &= links
        if not self._known:
            copy_all(self.values, copy)
            return None
        # Not reused: an earlier one may still be waiting to be sent.
        data = np.zeros(self._packing.nbytes, np.uint8)
        self._packing.advance(self.values, copy, data)
        return memoryview(data)  # type: ignore[arg-type]

    def send(self, conversation: Conversation, move: memoryview | None, whole: memoryview) -> None:
        """Send the difference to a host with the previous values, otherwise a whole copy."""
        if move is not None and conversation in self._known:
            conversation.post(MOVE, move)
        else:
            conversation.post(COPY, whole)
            self._known.add(conversation)
