"""The phase of a rank's life, and the table of its transitions."""

from __future__ import annotations

import enum
from collections.abc import Mapping

__all__ = ["TRANSITIONS", "Event", "Phase"]


class Phase(enum.IntEnum):
    """The phase of a rank; messages contain the numbers.

    A late rank has joined a running job, or was restarted, and has made no collective call with the
    others since: no call waits for it.
    """

    EXPECTED = 0
    JOINED = 1
    TRAINING = 2  # It shares the center.
    LEFT = 3
    LOST = 4
    EXPECTED_LATE = 5
    JOINED_LATE = 6
    TRAINING_LATE = 7
    LEFT_LATE = 8

    @property
    def gone(self) -> bool:
        return self in _GONE

    @property
    def left(self) -> bool:
        return self in (Phase.LEFT, Phase.LEFT_LATE)

    @property
    def present(self) -> bool:
        return self in _PRESENT

    @property
    def shares(self) -> bool:
        return self in _SHARES

    @property
    def awaited(self) -> bool:
        """Whether collective calls wait for it."""
        return self in _AWAITED

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", " ")


_GONE = (Phase.LEFT, Phase.LOST, Phase.LEFT_LATE)
_LATE = (Phase.EXPECTED_LATE, Phase.JOINED_LATE, Phase.TRAINING_LATE)
_PRESENT = (Phase.JOINED, Phase.TRAINING, Phase.JOINED_LATE, Phase.TRAINING_LATE)
_SHARES = (Phase.TRAINING, Phase.TRAINING_LATE)
_AWAITED = (Phase.EXPECTED, Phase.JOINED, Phase.TRAINING)


class Event(enum.Enum):
    JOIN = "joined"
    SHARE = "shared the center"
    RELEASE = "released the center"
    MEET = "met the others in a collective call"
    PART = "is in another part of the script"
    LEAVE = "left in good order"
    LOSE = "was lost"
    READMIT = "is to come again"


TRANSITIONS: Mapping[Event, Mapping[Phase, Phase]] = {
    Event.JOIN: {
        Phase.EXPECTED: Phase.JOINED,
        Phase.EXPECTED_LATE: Phase.JOINED_LATE,
        Phase.LEFT: Phase.JOINED,  # A script may connect() after close().
        Phase.LEFT_LATE: Phase.JOINED_LATE,
        Phase.LOST: Phase.JOINED,
    },
    Event.SHARE: {
        Phase.JOINED: Phase.TRAINING,
        Phase.TRAINING: Phase.TRAINING,
        Phase.JOINED_LATE: Phase.TRAINING_LATE,
        Phase.TRAINING_LATE: Phase.TRAINING_LATE,
    },
    Event.RELEASE: {Phase.TRAINING: Phase.JOINED, Phase.TRAINING_LATE: Phase.JOINED_LATE},
    Event.MEET: {Phase.JOINED_LATE: Phase.JOINED, Phase.TRAINING_LATE: Phase.TRAINING},
    Event.PART: {Phase.JOINED: Phase.JOINED_LATE, Phase.TRAINING: Phase.TRAINING_LATE},
    Event.LEAVE: {phase: Phase.LEFT_LATE if phase in _LATE else Phase.LEFT for phase in Phase if phase not in _GONE},
    # A worker that has left may still fail.
    Event.LOSE: {phase: Phase.LOST for phase in Phase if phase is not Phase.LOST},
    Event.READMIT: dict.fromkeys(_GONE, Phase.EXPECTED_LATE),
}
"""By event, what each phase becomes; a phase that an event does not have is not possible there."""
