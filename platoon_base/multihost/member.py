"""One of the other hosts of a job, as the first host knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from platoon_base.multihost import messages as between

__all__ = ["Member"]


@dataclass
class Member:
    """One of the other hosts.

    Attributes
    ----------
    host : int
    name : str
    session : bytes
        Of its launcher.
    arrived : Arrive
    lost : str
        Why the host does not take part any more; empty while it does.
    silent : bool
        Whether its heartbeats are missing, and the user has been warned.
    begun : bool
        Whether it serves the present job; earlier messages belong to an earlier job.
    has_courier : bool
        Whether it was sent the order to start its courier.
    """

    host: int
    name: str
    session: bytes
    arrived: between.Arrive
    lost: str = ""
    silent: bool = False
    replies: list[between.Forwarded] = field(default_factory=list)
    signals: int = 0
    begun: bool = False
    has_courier: bool = False

    def reset(self) -> None:
        """Reset the state that belongs to an earlier job or launcher."""
        self.replies, self.signals, self.begun, self.has_courier = [], 0, False, False
