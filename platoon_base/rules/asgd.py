"""Asynchronous SGD: the center adds up the workers' progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from platoon_base.rules.center import LocalState, Rule
from platoon_base.rules.forms import Form


@dataclass(frozen=True)
class ASGD(Rule):
    """Asynchronous SGD, as in Downpour: a worker adds its progress to the center and copies it.

    ::

        c := c + (x - x_old)
        x := c
        x_old := c

    ``x_old`` is the center at this worker's last synchronization. With one worker, only rounding
    changes the parameters.

    References
    ----------
    Dean et al.: Large scale distributed deep networks, NIPS 2012, section 4.1, with whole updates
    in place of gradients.
    """

    kernel: ClassVar[str | None] = "asgd"
    local_state: ClassVar[tuple[LocalState | str, ...]] = (LocalState("x_old"),)
    # Without locks, x_old is the value read; later additions are seen at the next synchronization.
    form: ClassVar[Form | None] = Form(
        """
        d := x - x_old
        c := c + d
        x := c
        x_old := c
        """,
        adds="d",
    )
