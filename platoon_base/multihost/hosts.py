"""The other hosts of a job, on host 0: it relays requests, mirrors rows and detects losses."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from platoon_base.channels import Received, ServerChannel
from platoon_base.checkpoints.files import About
from platoon_base.controller.controller import Controller
from platoon_base.controller.processes import WorkerProcesses
from platoon_base.controller.stop_signals import PASSED_ON
from platoon_base.coordination.roster import Participant, Roster, divided_peer
from platoon_base.coordination.story import Story
from platoon_base.errors import ConfigurationError, ProtocolError
from platoon_base.hosts import World
from platoon_base.job.files import JobFiles
from platoon_base.links.peer import LinkServer, Peer
from platoon_base.multihost import messages as between
from platoon_base.multihost.courier_table import CourierTable, Member
from platoon_base.multihost.hosts_job import LOST_STATUS, HostsJob
from platoon_base.multihost.mirror import Mirror, StateChanges
from platoon_base.shm.job_state import JobState
from platoon_base.system.process import awake
from platoon_base.timeouts import POLL_S, timeout

log = logging.getLogger(__name__)

# The interval of progress is longer with more ranks than this, in proportion.
_MIRROR_RANKS = 64


class HostTable:
    """The other hosts of one job, and the channel to its workers; a host that is silent for long is lost.

    See `ServerChannel` for `wait` and `reply`.
    """

    _local: ServerChannel  # To the workers of this host; see `relayed`.

    def __init__(self, link: LinkServer, members: Sequence[Member], world: World) -> None:
        self.world = world
        self._link = link
        self._members = {member.host: member for member in members}
        self._by_session = {member.peer.session: member for member in members}
        self._mirror_s = timeout("progress") * max(1.0, world.size / _MIRROR_RANKS)
        self._next_poll_at = self._next_tick = 0.0
        self._job: HostsJob | None = None  # The running job.
        self._story = Story()
        self._welcome: between.Welcome | None = None
        self._kept: list[tuple[Peer, bytes]] = []  # Messages that arrived while a job ended.

    def begin(
        self,
        job_state: JobState,
        files: JobFiles,
        is_held: Callable[[int], bool],
        roster: Roster,
        children: WorkerProcesses,
        controller: Controller,
    ) -> None:
        mirror = Mirror(job_state, files.job_state)
        changes = StateChanges(
            job_state, roster, lambda rank: mirror.holds(rank) if roster[rank].host_index else is_held(rank)
        )

        def center_filled(host: int) -> None:
            controller.decide(lambda coordinator: coordinator.center_filled(host))

        def unreachable(host: int, why: str) -> None:
            member = self._members[host]
            if not member.lost:
                self._mark_lost(member, why)
                member.send(between.Refused(f"the job continues without this host: it {why}"))

        couriers = CourierTable(files, self.world, roster, self._members, Member.send, center_filled, unreachable)
        self._job = HostsJob(self._members, roster, children, controller, mirror, changes, couriers)
        self._story = roster.story
        for member in self._members.values():
            self._job.watch(member, self.world.ranks_on(member.host))
            member.reset()

    def welcome(self, files: JobFiles, log_folder: Path, framework_address: str) -> None:
        self._welcome = between.Welcome(
            self.world,
            files.job,
            str(log_folder),
            files.checkpoint,
            framework_address,
            files.training or {},
        )
        for member in self._members.values():
            self._let_in(member)

    def _let_in(self, member: Member) -> None:
        if self._welcome is not None:
            world = msgspec.structs.replace(self.world, host=member.host)
            member.send(msgspec.structs.replace(self._welcome, world=world))

    def _serve(self) -> list[Received]:
        """Handle messages of other hosts, and send what is due; return their workers' requests."""
        requests: list[Received] = []
        received, self._kept = [*self._kept, *self._link.receive()], []
        for peer, body in received:
            member = self._by_session.get(peer.session)
            try:
                message = between.decode_up(body)
            except ProtocolError as exc:
                log.warning("%s", exc)
                continue
            if member is None:
                self._refuse_unknown_host(peer, message)
            elif member.lost:
                member.send(between.Refused(f"the job continues without this host: it {member.lost}"))
            else:
                requests += self._take(member, message)
        if self._job is not None:
            self._job.couriers.step()
        now = awake()
        if now >= self._next_poll_at:
            self._next_poll_at = now + self._mirror_s
            if self._job is not None:
                self._job.send_state(everything=True)
        if now >= self._next_tick:
            self._next_tick = now + POLL_S
            for member in self._members.values():
                if not member.lost:
                    self._check_member(member, now)
            self._link.tick(now)
            self._link.drop_lost(now, self._by_session)
        return requests

    def _refuse_unknown_host(self, peer: Peer, message: between.Up) -> None:
        if isinstance(message, between.Arrive):
            there = self._members.get(message.host)
            if there is not None and not there.lost and there.peer.absent:
                self._mark_lost(there, "sent no heartbeat, and its launcher was started again")
                # Handled after the controller has recorded the loss.
                self._kept.append((peer, between.encode(message)))
                return
            if there is not None and there.lost:
                self._take_back(there, peer, message)
                return
            why = f"the job is running already, with hosts 0 to {self.world.hosts - 1}"
            if there is not None:
                why = f"host {message.host} of the job is {there.name} (process {there.arrived.pid}) already"
            log.warning("refused %s, which joined as host %d: %s", message.name, message.host, why)
            peer.send(between.encode(between.Refused(f"{why}; pass a different --node-rank on each host")))

    def _take_back(self, member: Member, peer: Peer, arrived: between.Arrive) -> None:
        """Readmit a lost host with new workers, if the job's workers can continue with new ones."""
        before, ranks = member.arrived, list(self.world.ranks_on(member.host))
        same = (arrived.version, arrived.program, arrived.hosts, len(arrived.devices)) == (
            before.version, before.program, before.hosts, len(before.devices),
        )  # fmt: skip
        why = "" if same else "it has another version, script or number of workers than before"
        if not why and (arrived.problem or self._job is None):
            why = arrived.problem or "the job has not started"
        if not why and self._job is not None:
            why = self._job.controller.departures.host_returns(ranks)
        if why:
            log.warning("refused host %d (%s), which returned: %s", member.host, arrived.name, why)
            self._story.add("host", [member.host], "lost", "refused", why)
            peer.send(between.encode(between.Refused(f"the job continues without this host: {why}")))
            return
        log.warning("host %d (%s) has returned with workers %s", member.host, arrived.name, _listed(ranks))
        self._story.add("host", [member.host], "lost", "returned")
        self._by_session.pop(member.peer.session, None)
        self._link.forget(member.peer)
        self.world.addresses[member.host] = arrived.address
        member.peer, member.arrived, member.lost, member.silent = peer, arrived, "", False
        member.reset()
        self._by_session[peer.session] = member
        if self._job is not None:
            self._job.restore(member, ranks)
        self._let_in(member)

    def _take(self, member: Member, message: between.Up) -> list[Received]:
        job = self._job
        if isinstance(message, between.Begun):
            member.begun, member.signals = self._welcome is not None and message.job == self._welcome.job, 0
        elif isinstance(message, between.Signalled):
            number = signal.Signals(message.number)
            if number in PASSED_ON:
                if job is not None:
                    job.controller.ending.pass_on(number, member.host)
            elif message.count > member.signals:
                member.signals = message.count
                if job is not None:
                    job.controller.ending.take_of_other_host(number, message.count > 1)
        elif isinstance(message, between.Failed):
            self._mark_lost(member, f"has ended: {message.why}")
        if job is None or not member.begun:  # The message belongs to an earlier job.
            return []
        return job.take(member, message)

    @property
    def couriers(self) -> CourierTable:
        return self._present.couriers

    @property
    def _present(self) -> HostsJob:
        if self._job is None:
            raise ConfigurationError("there is no job at present: call begin() first")
        return self._job

    def _check_member(self, member: Member, now: float) -> None:
        silent_s = member.peer.silent_s(now)
        if why := member.peer.why_lost(now):
            self._mark_lost(member, why)
        elif silent_s > timeout("silence") and not member.silent:
            member.silent = True
            self._story.add("host", [member.host], "", "silent", f"for {silent_s:.1f} s")
            log.warning(
                "no heartbeat from host %d (%s) for %.1f s: the others continue, and wait for it "
"up to %g s (--host-timeout)",
                member.host, member.name, silent_s, timeout("host"),
            )  # fmt: skip
        elif silent_s < timeout("silence") and member.silent:
            member.silent = False
            self._story.add("host", [member.host], "silent", "answers")
            log.warning("host %d (%s) sends heartbeats again", member.host, member.name)

    def _mark_lost(self, member: Member, why: str) -> None:
        member.lost = why
        job = self._job
        ranks = list(self.world.ranks_on(member.host)) if job is None else job.ranks_on(member.host)
        log.warning("lost host %d (%s) with workers %s: it %s", member.host, member.name, _listed(ranks), why)
        if job is not None:
            job.mark_lost(member, why)

    def relayed(self, local: ServerChannel) -> ServerChannel:
        """Return the channel to the workers of all hosts, which is this; ``local`` is that of this host."""
        self._local = local
        return self

    def wait(self, timeout_s: float, fds: Sequence[int] = ()) -> tuple[list[Received], set[int]]:
        self._flush()
        sockets = [*self._link.sockets, *([] if self._job is None else self._job.couriers.fds)]
        sleep_s = max(0.0, min(self._next_poll_at, self._next_tick) - awake())
        requests, ready = self._local.wait(min(timeout_s, sleep_s), [*fds, *sockets])
        requests += self._serve()
        return requests, ready.difference(sockets)

    def reply(self, peer: bytes, request_id: bytes, data: bytes) -> None:
        """Answer a worker of this host, or queue an answer for one of another host."""
        host, there = divided_peer(peer)
        if not host:
            self._local.reply(peer, request_id, data)
        elif host in self._members and not self._members[host].lost:
            self._members[host].replies.append(between.Forwarded(there, request_id, data))

    def close(self) -> None:
        """Send queued messages to other hosts, and close the channel to the workers of this one."""
        self._flush()
        self._local.close()

    def _flush(self) -> None:
        """Send the queued answers, after the changes that they depend on."""
        if self._job is not None:
            self._job.couriers.flush()
            self._job.send_state(everything=False)
        for member in self._members.values():
            if member.replies:
                replies, member.replies = member.replies, []
                for batch in between.batches(replies):
                    member.send(between.Replies(batch))

    def adopt(self, late: Participant) -> None:
        member = self._members[late.host_index]
        self._present.watch(member, [late.rank])
        member.send(between.AdoptWorker(late.rank, late.pid, late.pid_namespace))

    def saved(self, about: About, folder: Path) -> None:
        """Send a checkpoint's contents: other hosts write one themselves if this host is lost."""
        data = between.encode(between.SavedState(about, str(folder.absolute())))
        for member in self._members.values():
            if not member.lost:
                member.peer.send(data, bulk=True)

    def end(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.end()

    @property
    def lost(self) -> str:
        """The lost hosts, in a line; empty if there are none."""
        return ", ".join(
            f"host {member.host} ({member.name}) is lost: it {member.lost}"
            for member in self._members.values()
            if member.lost
        )

    @contextlib.contextmanager
    def notifying_of_failure(self) -> Iterator[None]:
        """Notify the other hosts if an exception ends the ``with`` block and thus the job."""
        try:
            yield
        except BaseException as exc:
            self.over(LOST_STATUS, f"host 0 failed: {exc}", again=False)
            raise

    def over(self, status: int, text: str, again: bool) -> None:
        """Send the other hosts how the job ended, and wait briefly for their acknowledgements."""
        for member in self._members.values():
            member.send(between.JobOver(status, text, again))
        self._kept += self._link.finish([member.peer for member in self._members.values() if not member.lost])


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"
