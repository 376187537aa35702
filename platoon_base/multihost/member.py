"""One of the other hosts of a job, on host 0."""

from __future__ import annotations

from dataclasses import dataclass, field

from platoon_base.links.peer import Peer
from platoon_base.multihost import messages as between


@dataclass
class Member:
    """One of the other hosts. ``lost`` is the reason why it is lost, or empty."""

    host: int
    name: str
    peer: Peer
    arrived: between.Arrive
    lost: str = ""
    silent: bool = False
    replies: list[between.Forwarded] = field(default_factory=list)
    signals: int = 0
    begun: bool = False
    has_courier: bool = False

    def send(self, message: between.Down) -> None:
        """Send a message; a lost host gets only refusals and the end of the job."""
        if not self.lost or isinstance(message, (between.Refused, between.JobOver)):
            self.peer.send(between.encode(message))

    def reset(self) -> None:
        """Reset the state that belongs to an earlier job or launcher."""
        self.replies, self.signals, self.begun, self.has_courier = [], 0, False, False
