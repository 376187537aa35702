"""The deputy: the launcher of a host other than host 0, which relays workers' messages."""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from platoon_base.channels import Received, ServerChannel
from platoon_base.checkpoints.files import Checkpoint, CheckpointFolder
from platoon_base.checkpoints.writer import Readable
from platoon_base.controller.processes import Exit, WorkerProcesses
from platoon_base.controller.stop_signals import StopSignals
from platoon_base.coordination import messages as msg
from platoon_base.coordination.encoding import encode
from platoon_base.errors import PlatoonError
from platoon_base.job import backends
from platoon_base.job.files import JobFiles, Origin
from platoon_base.job.hosting import open_job_state, warden_of
from platoon_base.job.starting import placed
from platoon_base.links.peer import LinkClient
from platoon_base.multihost import messages as between
from platoon_base.multihost.couriers import CourierKeeper
from platoon_base.multihost.messages import SavedState
from platoon_base.multihost.mirror import Mirror, Sender
from platoon_base.shm.job_state import WORKER_LOCKS, JobState
from platoon_base.system.process import awake, default_sigchld, pid_namespace
from platoon_base.timeouts import timeout
from platoon_base.worker_process.program import Program, Start

log = logging.getLogger(__name__)

_STATUS_OF_LOST = 1
# When host 0 is lost, workers may take this time to end before they get signals.
_EXIT_GRACE_S = 1.0
_DISMISSED = "host 0 does not know this host any more"
_FIRST_HOST_LOST = "host 0 of the job is lost"


class Deputy:
    """Serves the workers of one host until host 0 ends the job or is lost.

    ``holds_lock(rank)`` returns whether that worker holds its lock in the job's state. ``server``
    is the channel to the workers of this host, and ``link`` is the one to host 0.
    """

    def __init__(
        self,
        files: JobFiles,
        job_state: JobState,
        holds_lock: Callable[[int], bool],
        server: ServerChannel,
        link: LinkClient,
        welcome: between.Welcome,
    ) -> None:
        self.files = files
        self._job = welcome.job
        self._warden = warden_of(files)
        self.children = WorkerProcesses(self._warden)
        self._holds_lock = holds_lock
        self._job_state = job_state
        self._server = server
        self._link = link
        self._mirror = Mirror(job_state, files.job_state)
        self._sender = Sender(job_state, holds_lock)
        self._last_checkpoint = LastCheckpoint(files, job_state)
        self._courier = CourierKeeper(files, self._send)
        self._own = list(files.world.ranks_here)
        self._next_poll_at = 0.0
        self._silent = False
        self._signals = 0
        self._signal: signal.Signals | None = None  # The first signal.
        self._lost_at: float | None = None
        self._over: between.JobOver | None = None
        self._unanswered: set[tuple[bytes, bytes]] = set()  # Connections and ids of requests.

    def start(self, program: Program, args: Sequence[str], preload: Sequence[str], starts: Sequence[Start]) -> None:
        """Start the workers of this host; see `WorkerProcesses.start_forked` for ``preload``."""
        self._send(between.Begun(self._job))
        starts = [placed(self.files, start) for start in starts]
        if preload:
            self.children.start_forked(program, args, preload, starts)
            return
        for start in starts:
            self._start(functools.partial(self.children.start, *start), start.rank)

    def _start(self, how: Callable[[], None], rank: int) -> None:
        try:
            how()
        except (OSError, PlatoonError) as exc:
            log.error("cannot start rank %d: %s", rank, exc)
            self._report(Exit(rank, 1, why=f"cannot be started: {exc}", at=time.time()))

    def serve(self, signals: StopSignals) -> between.JobOver:
        while self._over is None or self.children.running:
            self._serve_once(signals)
        if self._lost_at is not None:
            self._last_checkpoint.write()
        return self._over

    def _serve_once(self, signals: StopSignals) -> None:
        fds = [signals.fd, *self.children.fds]
        requests, ready = self._server.wait(self._sleep_s(), [*fds, *self._link.sockets, *self._courier.fds])
        if requests:
            self._forward(requests)
        if signals.fd in ready:
            self._take_signals(signals.take())
            for number in signals.take_for_workers():
                self._send(between.Signalled(number, self._signals))
        self._link.receive()
        while self._link.inbox and not (self._over is not None and self._over.again):
            self._handle(between.decode_down(self._link.inbox.popleft()))
        self._courier.step()
        self.children.escalate()
        if ready.intersection(fds) or self.children.stopping or self.children.some_without_fd:
            for ended in self.children.reap():
                self._report(ended)
        self._poll()

    def _sleep_s(self) -> float:
        if self.children.stopping:
            return 0.02
        return max(0.0, self._next_poll_at - awake())

    def _forward(self, requests: Sequence[Received]) -> None:
        """Send requests to host 0, after the rows of workers that have just acquired their lock."""
        self._unanswered.update((request.peer, request.request_id) for request in requests)
        if self._lost_at is not None:
            self._refuse_unanswered()
            return
        rows = self._sender.newly_held(self._own)
        for batch in between.batches([between.Forwarded(*request) for request in requests]):
            self._send(between.Requests(batch, rows))
            rows = between.Rows(rows.sent_at)

    def _take_signals(self, signals: list[signal.Signals]) -> None:
        for number in signals:
            self._signals += 1
            self._signal = self._signal or number
            if (
                self._lost_at is not None or self._signals > 1
            ):  # The user has interrupted twice: host 0 may be unable to decide.
                self.children.kill()
            self._send(between.Signalled(number, self._signals))

    def _handle(self, message: between.Down) -> None:
        if isinstance(message, between.Replies):
            for each in message.replies:
                self._unanswered.discard((each.peer, each.request_id))
                self._server.reply(each.peer, each.request_id, each.data)
        elif isinstance(message, between.JobState):
            self._put_state(message)
        elif isinstance(message, between.SavedState):
            self._last_checkpoint.note(message)
        elif isinstance(message, between.SignalWorker):
            number = signal.Signals(message.number)
            if message.offered:
                self.children.offer(number, [message.rank])
            else:
                self.children.signal_one(message.rank, number)
        elif isinstance(message, between.StartAgain):
            self._start(lambda: self.children.start_again(message.rank), message.rank)
        elif isinstance(message, between.AdoptWorker):
            self._adopt(message)
        elif isinstance(message, between.JobOver):
            self._end(message)
        elif isinstance(message, between.Refused):
            self._end(between.JobOver(_STATUS_OF_LOST, message.why))
        elif not isinstance(message, between.Welcome):
            self._courier.handle_order(message)

    def _put_state(self, state: between.JobState) -> None:
        """Write the state from host 0 into shared memory, the rows of other hosts first."""
        self._mirror.put(0, state.rows)
        job_state = self._job_state
        for rank, lives, text in state.endings:
            row = job_state.row(rank)
            if rank not in self._own or int(row["lives"]) == lives or not text:
                job_state.write_text(rank, "ending", text)
        if state.several:
            job_state.note_several()
        if job_state.leader != state.leader:
            job_state.leader = state.leader
        job_state.num_live = state.num_live
        if state.stop:
            job_state.stop(state.stop)

    def _adopt(self, late: between.AdoptWorker) -> None:
        if late.rank not in self._own:
            self._own.append(late.rank)
        pid = late.pid if late.pid_namespace == pid_namespace() != 0 else None
        self.children.adopt(
            late.rank,
            pid,
            functools.partial(self._holds_lock, late.rank),
            lambda: bool(self._job_state.row(late.rank)["left"]),
        )

    def _report(self, ended: Exit) -> None:
        """Report to host 0 that a worker has ended, after its last row."""
        if self._link.peer.in_flight < 64:
            self._send(between.Requests([], self._sender.changed(self._own)))
        log_file = None if ended.log_file is None else ended.log_file.absolute()
        self._send(between.WorkerEnded(ended._replace(log_file=log_file)))

    def _poll(self) -> None:
        """Send changed rows if due, and check whether host 0 is alive."""
        now = awake()
        if now >= self._next_poll_at:
            self._next_poll_at = now + timeout("progress")
            if not self._link.peer.in_flight:  # Otherwise the next poll finds all changes.
                rows = self._sender.changed(self._own)
                if rows.ranks:
                    self._send(between.Requests([], rows))
        self._link.peer.tick(now)
        if self._lost_at is not None:
            if now > self._lost_at + _EXIT_GRACE_S and not self.children.stopping:
                self.children.stop(timeout("grace"))
        elif self._over is None:
            self._check_first_host(now)

    def _check_first_host(self, now: float) -> None:
        peer = self._link.peer
        silent_s = peer.silent_s(now)
        if self._link.replaced:
            self._end(between.JobOver(_STATUS_OF_LOST, f"the job {self._link.dismissed}"))
        elif self._link.dismissed:
            log.warning("the job %s: stopping the workers of this host", self._link.dismissed)
            self._mark_first_host_lost(now, f"{_DISMISSED}: the job {self._link.dismissed}")
        elif why := peer.why_lost(now):
            log.warning("lost host 0 (it %s): stopping the workers of this host", why)
            self._mark_first_host_lost(now, f"{_FIRST_HOST_LOST}: it {why}")
        elif silent_s > timeout("silence") and self._signals > 1 and self._signal is not None:
            log.warning("got %s twice without a heartbeat from host 0: ending this host without it", self._signal.name)
            self._end(between.JobOver(128 + self._signal, f"{self._signal.name} without a heartbeat from host 0"))
        elif silent_s > timeout("silence") and not self._silent:
            self._silent = True
            log.warning(
                "no heartbeat from host 0 for %.1f s: waiting up to %g s (--host-timeout)",
                silent_s, timeout("host"),
            )  # fmt: skip
        elif silent_s < timeout("silence") and self._silent:
            self._silent = False
            log.warning("host 0 sends heartbeats again")

    def _mark_first_host_lost(self, now: float, text: str) -> None:
        self._lost_at = now
        self._over = between.JobOver(_STATUS_OF_LOST, text)
        self._job_state.stop(text)
        self._refuse_unanswered()  # Workers that receive this error can report why they end.

    def _refuse_unanswered(self) -> None:
        """Answer, with an error, the requests that host 0 will not answer."""
        why = _FIRST_HOST_LOST if self._over is None else self._over.text
        refusal = encode(msg.Failure(kind="WorkerLostError", message=f"{why}; start the job again"))
        for peer, request_id in self._unanswered:
            self._server.reply(peer, request_id, refusal)
        self._unanswered.clear()

    def _end(self, over: between.JobOver) -> None:
        """End the workers that still run; then `serve` returns."""
        if self._over is None:
            self._over = over
            if self.children.running:
                self._job_state.stop(over.text)
                self.children.stop(timeout("grace"))

    def _send(self, message: between.Up) -> None:
        self._link.peer.send(between.encode(message))

    def close(self) -> None:
        """Kill what still runs, and release all locks."""
        self.children.kill()
        self._warden.close()
        self._courier.close()
        self._last_checkpoint.close()
        self._mirror.close()


@contextlib.contextmanager
def host_deputy(link: LinkClient, welcome: between.Welcome, origin: Origin) -> Iterator[Deputy]:
    """Open the job on this host; within the ``with`` block start its workers and serve them."""
    world = welcome.world
    # After the block nothing of the job is left on this host: no process, shared memory or folder.
    with contextlib.ExitStack() as stack:
        files = JobFiles(
            size=world.size,
            job=welcome.job,
            checkpoint=welcome.checkpoint,
            origin=origin,
            world=world,
            training=welcome.training,
        ).create()
        stack.callback(files.lock().close)
        stack.callback(files.remove)
        segment, job_state = stack.enter_context(open_job_state(files))
        for rank in range(world.size):
            job_state.start_row(rank)
        job_state.num_live = len(world.ranks_here), world.size
        server = backends.listen_at(files.address)
        stack.callback(server.close)
        stack.enter_context(default_sigchld())
        deputy = Deputy(
            files,
            job_state,
            lambda rank: segment.locked(WORKER_LOCKS + rank),
            server,
            link,
            welcome,
        )
        stack.callback(deputy.close)
        yield deputy


class LastCheckpoint:
    """Keeps host 0's latest checkpoint without its arrays, and this host's center open."""

    def __init__(self, files: JobFiles, job_state: JobState) -> None:
        self._files = files
        self._job_state = job_state
        self._latest: SavedState | None = None
        self._center: Readable | None = None

    def note(self, latest: SavedState) -> None:
        self._latest = latest
        if latest.about.parameters and self._center is None:
            with contextlib.suppress(OSError, PlatoonError):  # There is no center here yet.
                self._center = backends.watch_center(self._files, latest.about.layout)

    def write(self) -> None:
        """Write a checkpoint in place of host 0, after all workers of this host have ended."""
        latest = self._latest
        if latest is None:
            return
        if self._center is None:
            self.note(latest)
        if self._center is None:
            log.warning("this host writes no checkpoint, because it has no center. Resume from %s", latest.folder)
            return
        positions = {rank: self._job_state.position(rank) for rank in latest.about.positions}
        about = msgspec.structs.replace(latest.about, positions=positions)
        folder = Path(latest.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            values, states = self._center.snapshot(may_wait=True)
            path = CheckpointFolder(folder).save(Checkpoint.of(about, about.layout, values, states))
        except (OSError, PlatoonError) as exc:
            log.warning(
                "cannot save the center of this host in %s (another host of the job may be "
"saving its own there): %s",
                folder, exc,
            )  # fmt: skip
        else:
            log.warning("this host has saved its center in %s: continue from there with --resume %s", path, folder)

    def close(self) -> None:
        if self._center is not None:
            self._center.close()
