"""One job on the other hosts: mirrors rows, sends orders, and records how workers end."""

from __future__ import annotations

import functools
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from platoon_base.channels import Received
from platoon_base.controller.controller import Controller
from platoon_base.controller.processes import Exit, WorkerProcesses
from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import decode_request
from platoon_base.coordination.encoding import encode as encode_request
from platoon_base.coordination.roster import Roster, relayed_peer
from platoon_base.courier.messages import Filled, Gathered, LeftOut, Listening
from platoon_base.errors import PlatoonError, ProtocolError
from platoon_base.multihost import messages as between
from platoon_base.multihost.courier_table import CourierTable, Member
from platoon_base.multihost.mirror import Mirror, StateChanges

LOST_STATUS = 1  # Exit status of a worker on a lost host.
_END_JOB = b"end-job"


class HostsJob:
    def __init__(
        self,
        members: Mapping[int, Member],
        roster: Roster,
        children: WorkerProcesses,
        controller: Controller,
        mirror: Mirror,
        changes: StateChanges,
        couriers: CourierTable,
    ) -> None:
        self.couriers, self.controller, self.roster = couriers, controller, roster
        self._members, self._children = members, children
        self._mirror, self._changes = mirror, changes
        self._state_sent: Any = None  # The version of the state that all hosts have.

    def watch(self, member: Member, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._children.watch_remote(
                rank,
                functools.partial(self._signal_worker, member, rank),
                functools.partial(self._start_again, member, rank),
            )

    def _signal_worker(self, member: Member, rank: int, number: signal.Signals, offered: bool) -> None:
        member.send(between.SignalWorker(rank, number, offered))

    def _start_again(self, member: Member, rank: int) -> None:
        if member.lost:
            raise PlatoonError(f"host {member.host} ({member.name}) is lost: it {member.lost}")
        member.send(between.StartAgain(rank))

    def take(self, member: Member, message: between.Up) -> list[Received]:
        """Handle a message of a host; return requests of its workers."""
        if isinstance(message, between.Requests):
            self._mirror.put(member.host, message.rows)
            return [
                Received(relayed_peer(member.host, each.peer), each.request_id, self._shifted(member, each.data))
                for each in message.requests
            ]
        if isinstance(message, between.WorkerEnded):
            self._children.remote_ended(message.ended)
        elif isinstance(message, (Listening, Filled, Gathered, LeftOut)):
            self.couriers.handle_news(member.host, message)
        return []

    def _shifted(self, member: Member, data: bytes) -> bytes:
        """Convert the time in a request to end the job to this host's clock."""
        if _END_JOB not in data[:64]:
            return data
        try:
            request = decode_request(data)
        except ProtocolError:
            return data
        if isinstance(request, msg.EndJob):
            shift_s = self._mirror.shift_s(member.host)
            return encode_request(
                msg.EndJob(protocol=request.protocol, sent_at=request.sent_at + shift_s, grace_s=request.grace_s)
            )
        return data

    def ranks_on(self, host: int) -> list[int]:
        """Return the ranks of a host, including those that joined late."""
        return [rank for rank, participant in self.roster.items() if participant.host_index == host]

    def mark_lost(self, member: Member, why: str) -> None:
        ranks = self.ranks_on(member.host)
        self._mirror.mark_lost(member.host, ranks)
        self.controller.decide(lambda coordinator: coordinator.host_lost(member.host, f"it {why}"))
        self.couriers.mark_lost(member.host)
        for rank in ranks:
            text = f"host {member.host} ({member.name}) is lost: it {why}"
            self._children.remote_ended(Exit(rank, LOST_STATUS, why=text, at=time.time()))

    def restore(self, member: Member, ranks: Iterable[int]) -> None:
        self._changes.forget(member.host)
        self._state_sent = None
        self.watch(member, ranks)

    def send_state(self, everything: bool) -> None:
        """Send the other hosts all changes, or only those that answers rely on."""
        if everything:
            self._changes.poll()
        else:
            self._changes.collect_joined()
        found: Any = self._changes.found
        if found == self._state_sent:
            return
        for member in self._members.values():
            if member.lost:
                continue
            if member.peer.in_flight > 1 and not member.replies:
                found = None  # A host that is behind gets all changes later.
                continue
            changed = self._changes.since_sent(member.host)
            if changed is not None:
                member.send(changed)
        self._state_sent = found

    def end(self) -> None:
        self.couriers.end()
        self._mirror.close()
