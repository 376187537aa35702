"""The other hosts of a job, for the launcher of host 0: it relays requests, mirrors rows and detects losses."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from platoon_base.channels.base import Received, ServerChannel
from platoon_base.channels.host_link import LinkServer
from platoon_base.channels.host_peer import SILENT_S
from platoon_base.checkpoints.files import About
from platoon_base.controller.controller import Controller
from platoon_base.controller.processes import Exit, WorkerProcesses
from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import decode_request
from platoon_base.coordination.encoding import encode as encode_request
from platoon_base.coordination.roster import Participant, Roster, divided_peer, relayed_peer
from platoon_base.courier.messages import Filled, Gathered, LeftOut, Listening
from platoon_base.errors import ConfigurationError, PlatoonError, ProtocolError
from platoon_base.hosts.world import World
from platoon_base.job.files import JobFiles
from platoon_base.multihost import messages as between
from platoon_base.multihost.changes import StateChanges
from platoon_base.multihost.courier_table import CourierTable
from platoon_base.multihost.member import Member
from platoon_base.multihost.mirror import Mirror
from platoon_base.multihost.relay import RelayServer
from platoon_base.shm.job_state import JobState

__all__ = ["HostTable"]

log = logging.getLogger(__name__)

_MIRROR_S, _MIRROR_RANKS = 0.1, 64  # between two polls of all rows; longer in proportion to more ranks
_TICK_S = 0.1  # between two checks for silent hosts and due heartbeats
_LOST_STATUS = 1
_LAST_WORD_S = 2.0  # timeout for hosts to acknowledge the end of the job
_END_JOB = b"end-job"


class HostTable:
    """The other hosts of one job.

    Parameters
    ----------
    link : LinkServer
    members : sequence of Member
    world : World
    timeout_s : float
        A host that is silent for so long is lost.
    """

    def __init__(self, link: LinkServer, members: Sequence[Member], world: World, timeout_s: float) -> None:
        self.world = world
        self._link = link
        self._members = {member.host: member for member in members}
        self._by_session = {member.session: member for member in members}
        self._timeout_s = timeout_s
        self._mirror_s = _MIRROR_S * max(1.0, world.size / _MIRROR_RANKS)
        self._next_look = self._next_tick = 0.0
        self._state_sent: Any = None  # that all hosts have
        self._mirror: Mirror | None = None
        self._roster = Roster(0, 0)
        self._children: WorkerProcesses | None = None
        self._couriers: CourierTable | None = None  # of a job
        self._controller: Controller | None = None
        self._changes: StateChanges | None = None
        self._welcome: between.Welcome | None = None
        self._kept: list[tuple[bytes, bytes]] = []  # sessions and messages that came while a job ended

    def begin(
        self,
        job_state: JobState,
        files: JobFiles,
        is_held: Callable[[int], bool],
        roster: Roster,
        children: WorkerProcesses,
        controller: Controller,
    ) -> None:
        """See `OtherHosts.begin`."""
        mirror = self._mirror = Mirror(job_state, files.job_state)
        self._changes = StateChanges(
            job_state, roster, lambda rank: mirror.holds(rank) if roster[rank].host_index else is_held(rank)
        )
        self._state_sent = None
        self._couriers = CourierTable(files, self.world, roster, self._members, self._send, self._center_filled)
        self._roster, self._children, self._controller = roster, children, controller
        for member in self._members.values():
            self._watch(member, self.world.ranks_on(member.host))
            member.reset()

    def welcome(self, job: str, log_folder: Path, grace_s: float, checkpoint: str, framework_address: str) -> None:
        """Order the other hosts to start their workers."""
        self._welcome = between.Welcome(
            self.world,
            job,
            str(log_folder),
            self._timeout_s,
            grace_s,
            checkpoint,
            framework_address,
            self._link.lifeline_port,
        )
        for member in self._members.values():
            self._let_in(member)

    def _let_in(self, member: Member) -> None:
        """Order a host to start its workers."""
        if self._welcome is not None:
            world = msgspec.structs.replace(self.world, host=member.host)
            self._send(member, msgspec.structs.replace(self._welcome, world=world))

    def _watch(self, member: Member, ranks: Iterable[int]) -> None:
        """Count workers of another host as running."""
        for rank in ranks:
            if self._children is not None:
                self._children.watch_remote(
                    rank,
                    functools.partial(self._signal_worker, member, rank),
                    functools.partial(self._start_again, member, rank),
                )

    @property
    def sockets(self) -> list[Any]:
        """The sockets and file descriptors to poll."""
        return [*self._link.sockets, *([] if self._couriers is None else self._couriers.fds)]

    @property
    def sleep_s(self) -> float:
        """How long to sleep at most, in seconds."""
        return max(0.0, min(self._next_look, self._next_tick) - time.monotonic())

    def serve(self) -> list[Received]:
        """Handle the other hosts' messages, and send what is due; return the requests of their workers."""
        requests: list[Received] = []
        received, self._kept = [*self._kept, *self._link.receive()], []
        for session, body in received:
            member = self._by_session.get(session)
            try:
                message = between.decode_up(body)
            except ProtocolError as exc:
                log.warning("%s", exc)
                continue
            if member is None:
                self._refuse_stranger(session, message)
            elif member.lost:
                self._send(member, between.Refused(f"the job goes on without this host, which {member.lost}"))
            else:
                requests += self._take(member, message)
        if self._couriers is not None:
            self._couriers.step()
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self._mirror_s
            self._send_state(everything=True)
        if now >= self._next_tick:
            self._next_tick = now + _TICK_S
            for member in self._members.values():
                if not member.lost:
                    self._look_after(member, now)
            self._link.tick(now)
        return requests

    def _refuse_stranger(self, session: bytes, message: between.Up) -> None:
        if isinstance(message, between.Arrive):
            there = self._members.get(message.host)
            if there is not None and not there.lost and self._is_absent(there):
                self._lose(there, "was silent, and its launcher was started again")
                self._kept.append((session, between.encode(message)))  # once the controller knows the loss
                return
            if there is not None and there.lost:
                self._take_back(there, session, message)
                return
            why = f"the job runs already, with hosts 0 to {self.world.hosts - 1}"
            if there is not None:
                why = f"host {message.host} of the job is {there.name} (process {there.arrived.pid}) already"
            log.warning("%s has come as host %d and was refused: %s", message.name, message.host, why)
            peer = self._link.peers[session]
            peer.send(between.encode(between.Refused(f"{why}; give each host another --node-rank")))

    def _take_back(self, member: Member, session: bytes, arrived: between.Arrive) -> None:
        """Readmit a host that was lost, with new workers, if the job's workers can continue with new ones."""
        before, ranks = member.arrived, list(self.world.ranks_on(member.host))
        same = (arrived.version, arrived.program, arrived.hosts, len(arrived.devices)) == (
            before.version, before.program, before.hosts, len(before.devices),
        )  # fmt: skip
        why = "" if same else "it has another version, script or number of workers than before"
        if not why and (arrived.problem or self._controller is None):
            why = arrived.problem or "the job has not begun"
        if not why and self._controller is not None:
            why = self._controller.host_returns(ranks)
        if why:
            log.warning("host %d (%s) has come back and was refused: %s", member.host, arrived.name, why)
            self._roster.story.add("host", [member.host], "lost", "refused", why)
            self._link.peers[session].send(between.encode(between.Refused(f"the job goes on without this host: {why}")))
            return
        log.warning("host %d (%s) is back, with workers %s", member.host, arrived.name, _listed(ranks))
        self._roster.story.add("host", [member.host], "lost", "returned")
        self._by_session.pop(member.session, None)
        self._link.forget(member.session)
        self.world.addresses[member.host] = arrived.address
        member.session, member.arrived, member.lost, member.silent = session, arrived, "", False
        member.reset()
        if self._changes is not None:
            self._changes.forget(member.host)
        self._state_sent = None
        self._by_session[session] = member
        self._watch(member, ranks)
        self._let_in(member)

    def _take(self, member: Member, message: between.Up) -> list[Received]:
        mirror = self._mirror
        if isinstance(message, between.Begun):
            member.begun, member.signals = self._welcome is not None and message.job == self._welcome.job, 0
        elif isinstance(message, between.Signalled):
            self._take_signal(member, message)
        elif isinstance(message, between.Failed):
            self._lose(member, f"has ended: {message.why}")
        if not member.begun:  # of the job before
            return []
        if isinstance(message, between.Requests):
            if mirror is not None:
                mirror.put(member.host, message.rows)
            return [
                Received(relayed_peer(member.host, each.peer), each.request_id, self._shifted(member, each.data))
                for each in message.requests
            ]
        if isinstance(message, between.WorkerEnded):
            log_file = Path(message.log_file) if message.log_file else None
            how = (message.status, log_file, message.why, message.failure, message.log_begin, message.at)
            self._ended(Exit(message.rank, *how))
        elif self._couriers is None:
            return []
        elif isinstance(message, between.CourierListens):
            self._couriers.hear(member.host, Listening(*message.at))
        elif isinstance(message, between.CenterFilled):
            self._couriers.hear(member.host, Filled())
        elif isinstance(message, (Gathered, LeftOut)):
            self._couriers.hear(member.host, message)
        return []

    def _center_filled(self, host: int) -> None:
        if self._controller is not None:
            self._controller.decide(lambda coordinator: coordinator.center_filled(host))

    def _take_signal(self, member: Member, message: between.Signalled) -> None:
        if message.count > member.signals:
            member.signals = message.count
            if self._controller is not None:
                self._controller.take_signal(signal.Signals(message.number), message.count > 1)

    @property
    def couriers(self) -> CourierTable:
        """The couriers of the present job."""
        if self._couriers is None:
            raise ConfigurationError("there are couriers within a job only: call begin() first")
        return self._couriers

    def _shifted(self, member: Member, data: bytes) -> bytes:
        """Convert the time in a request to end the job to this host's clock."""
        if _END_JOB not in data[:64] or self._mirror is None:
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

    def _ended(self, ended: Exit) -> None:
        if self._children is not None:
            self._children.remote_ended(ended)

    def _is_absent(self, member: Member) -> bool:
        peer = self._link.peers[member.session]
        return peer.gone or peer.silent_s(time.monotonic()) > SILENT_S

    def _look_after(self, member: Member, now: float) -> None:
        peer = self._link.peers[member.session]
        silent_s = peer.silent_s(now)
        if peer.closed(now):
            self._lose(member, "has ended without a word: was its launcher killed?")
        elif silent_s > self._timeout_s:
            self._lose(member, f"was silent for {silent_s:.1f} s")
        elif silent_s > SILENT_S and not member.silent:
            member.silent = True
            self._roster.story.add("host", [member.host], "", "silent", f"since {silent_s:.1f} s")
            log.warning(
                "host %d (%s) is silent since %.1f s: the others go on, and wait for it up to %g s (--host-timeout)",
                member.host, member.name, silent_s, self._timeout_s,
            )  # fmt: skip
        elif silent_s < SILENT_S and member.silent:
            member.silent = False
            self._roster.story.add("host", [member.host], "silent", "answers")
            log.warning("host %d (%s) answers again", member.host, member.name)

    def _lose(self, member: Member, why: str) -> None:
        member.lost = why
        ranks = self.ranks_on(member.host)
        log.warning("host %d (%s) is lost, with workers %s: it %s", member.host, member.name, _listed(ranks), why)
        if self._mirror is not None:
            self._mirror.lose(member.host, ranks)
        if self._controller is not None:
            self._controller.decide(lambda coordinator: coordinator.host_lost(member.host, f"it {why}"))
        if self._couriers is not None:
            self._couriers.lose(member.host)
        for rank in ranks:
            text = f"host {member.host} ({member.name}) is lost: it {why}"
            self._ended(Exit(rank, _LOST_STATUS, why=text, at=time.time()))

    def ranks_on(self, host: int) -> list[int]:
        """Return the ranks of a host, those that joined late included."""
        return [rank for rank, participant in self._roster.items() if participant.host_index == host]

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        """Queue an answer for a worker of another host; `flush` sends it."""
        host, there = divided_peer(peer)
        member = self._members.get(host)
        if member is not None and not member.lost:
            member.replies.append(between.Forwarded(there, request_id, data))

    def flush(self) -> None:
        """Send the queued answers, after the changes that they depend on."""
        if self._couriers is not None:
            self._couriers.flush()
        self._send_state(everything=False)
        for member in self._members.values():
            if member.replies:
                replies, member.replies = member.replies, []
                for batch in between.batches(replies):
                    self._send(member, between.Replies(batch))

    def _send_state(self, everything: bool) -> None:
        """Send the other hosts what has changed; without ``everything`` only what answers may depend on."""
        if self._changes is None:
            return
        if everything:
            self._changes.look()
        else:
            self._changes.look_for_joined()
        found: Any = self._changes.found
        if found == self._state_sent:
            return
        for member in self._members.values():
            if member.lost:
                continue
            if self._link.peers[member.session].in_flight > 1 and not member.replies:
                found = None  # a slow host will be sent later all that has changed meanwhile
                continue
            changed = self._changes.since_sent(member.host)
            if changed is not None:
                self._send(member, changed)
        self._state_sent = found

    def _signal_worker(self, member: Member, rank: int, number: signal.Signals) -> None:
        self._send(member, between.SignalWorker(rank, number))

    def _start_again(self, member: Member, rank: int) -> None:
        if member.lost:
            raise PlatoonError(f"host {member.host} ({member.name}) is lost: it {member.lost}")
        self._send(member, between.StartAgain(rank))

    def adopt(self, late: Participant) -> None:
        """See `OtherHosts.adopt`."""
        member = self._members[late.host_index]
        self._watch(member, [late.rank])
        self._send(member, between.AdoptWorker(late.rank, late.pid, late.pid_namespace))

    def saved(self, about: About, folder: Path) -> None:
        """See `OtherHosts.saved`."""
        data = between.encode(between.SavedState(about, str(folder.absolute())))
        for member in self._members.values():
            if not member.lost:
                self._link.peers[member.session].send(data, bulk=True)

    def relayed(self, local: ServerChannel) -> ServerChannel:
        """See `OtherHosts.relayed`."""
        return RelayServer(local, self)

    def end(self) -> None:
        """See `OtherHosts.end`."""
        self._children = self._controller = None
        if self._couriers is not None:
            self._couriers.end()
            self._couriers = None
        if self._mirror is not None:
            self._mirror.close()
            self._mirror = self._changes = None

    @property
    def lost(self) -> str:
        """The hosts that are lost, in a line; empty if none is."""
        return ", ".join(
            f"host {member.host} ({member.name}) is lost, it {member.lost}"
            for member in self._members.values()
            if member.lost
        )

    @contextlib.contextmanager
    def told_of_failure(self) -> Iterator[None]:
        """Notify the other hosts if an exception ends the ``with`` block, and with it the job."""
        try:
            yield
        except BaseException as exc:
            self.over(_LOST_STATUS, f"the first host failed: {exc}", again=False)
            raise

    def over(self, status: int, text: str, again: bool) -> None:
        """Send the other hosts how the job ended, and wait shortly until they have acknowledged it."""
        for member in self._members.values():
            self._send(member, between.JobOver(status, text, again))
        deadline = time.monotonic() + _LAST_WORD_S
        peers = [self._link.peers[member.session] for member in self._members.values() if not member.lost]
        while time.monotonic() < deadline and any(peer.in_flight and not peer.gone for peer in peers):
            self._kept += self._link.receive()
            self._link.tick(time.monotonic())
            self._link.poll(0.05)

    def _send(self, member: Member, message: between.Down) -> None:
        if not member.lost or isinstance(message, (between.Refused, between.JobOver)):
            self._link.peers[member.session].send(between.encode(message))


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"
