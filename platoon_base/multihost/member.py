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
        Why it takes part no more; empty while it does.
    silent : bool
        Whether it was found to be silent, and the user has been warned.
    begun : bool
        Whether it serves the present job; what it sends before is of an earlier one.
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
        """Forget what was of an earlier job, or of an earlier launcher."""
        self.replies, self.signals, self.begun, self.has_courier = [], 0, False, False
