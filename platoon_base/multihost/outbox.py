"""The messages of host 0 to the others."""

from __future__ import annotations

from collections.abc import Mapping

from platoon_base.links.peer import LinkServer
from platoon_base.multihost import messages as between
from platoon_base.multihost.member import Member

__all__ = ["Outbox"]


class Outbox:
    """Sends messages to the hosts that take part."""

    def __init__(self, link: LinkServer, members: Mapping[int, Member]) -> None:
        self._link, self.members = link, members

    def send(self, member: Member, message: between.Down) -> None:
        """Send a host a message; a lost host gets only refusals and the end of the job."""
        if not member.lost or isinstance(message, (between.Refused, between.JobOver)):
            self._link.peers[member.session].send(between.encode(message))

    def send_all(self, message: between.Down) -> None:
        """Send a large message to all hosts that are not lost, after more urgent ones."""
        data = between.encode(message)
        for member in self.members.values():
            if not member.lost:
                self._link.peers[member.session].send(data, bulk=True)

    def in_flight(self, member: Member) -> int:
        return self._link.peers[member.session].in_flight
