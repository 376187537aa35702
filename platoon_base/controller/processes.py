"""Starts, watches and stops the worker processes of a job."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from platoon_base.controller.stop_signals import PASSED_ON
from platoon_base.controller.watch import (
    ChildProcess,
    Ended,
    ForeignProcess,
    LockHolder,
    Watched,
    described,
    exit_status,
)
from platoon_base.errors import ConfigurationError, PlatoonError
from platoon_base.system.limits import limit_text, oom_kills
from platoon_base.system.own_files import open_log
from platoon_base.timeouts import SHORT_POLL_S, timeout
from platoon_base.worker_process.failure import INTERRUPTED, Failure, error_file, find_failure, take_lost_output
from platoon_base.worker_process.forkserver import ForkServer
from platoon_base.worker_process.program import Program, Start
from platoon_base.worker_process.warden import Warden

log = logging.getLogger(__name__)

_KILLED = 128 + signal.SIGKILL
_TERM_TO_KILL_S = 0.5
_OUTPUT_CHECK_INTERVAL_S = 1.0
_LEFT_RUNNING = "left running, because the launcher cannot end it"


class Exit(NamedTuple):
    """How a worker process ended."""

    rank: int
    # 128 + n after signal n. 0 for an adopted process: only its own parent can read its status.
    status: int
    # None if it was not started here. msgspec reads these types at run time, on Python 3.9 too.
    log_file: Optional[Path] = None  # noqa: UP045
    why: str = ""  # Why the status is not the process's own, such as a signal to all workers.
    # The exception that ended its script, if one was recorded.
    failure: Optional[Failure] = None  # noqa: UP045
    log_begin: int = 0  # Offset of its output in the log, in bytes.
    at: float = 0.0  # When it failed or ended, in seconds since the epoch.

    def __str__(self) -> str:
        return self.why or described(self.status)

    @property
    def cause(self) -> str:
        """How it ended and why, in one line."""
        if self.failure is None or (self.failure.kind == "SystemExit" and self.failure.text.isdigit()):
            return f"{self}{f' ({self.failure.where})' if self.failure is not None and self.failure.where else ''}"
        where = f" ({self.failure.where})" if self.failure.where else ""
        return f"{self.failure.what}{where}"


class _Remote(NamedTuple):
    """A worker of another host: callbacks that signal and restart it there."""

    signal: Callable[[signal.Signals, bool], None]
    start_again: Callable[[], None]


class _OutputWatch:
    """Warns once if workers of this host cannot write their output."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def check(self, starts: Mapping[int, Start], ended: bool = False) -> None:
        """Check for lost output, at most once a second unless a worker has ended."""
        now = time.monotonic()
        if self._next_at == math.inf or not starts or (now < self._next_at and not ended):
            return
        self._next_at = now + _OUTPUT_CHECK_INTERVAL_S
        start = next(iter(starts.values()))
        why = take_lost_output(start.environment)
        if why and start.log_file is not None:
            self._next_at = math.inf
            log.warning(
                "cannot write logs in %s (%s): the output of the workers is lost until this "
                "succeeds. Training continues",
                start.log_file.parent,
                why,
            )


class WorkerProcesses:
    """The worker processes of one job, by rank; the warden ends them if this process is killed.

    Each process started here leads its own process group: its descendants end with it.
    """

    def __init__(self, warden: Warden | None = None) -> None:
        self._warden = warden
        self._children: dict[int, Watched] = {}
        self._starts: dict[int, Start] = {}
        self._remote: dict[int, _Remote] = {}
        self._remote_running: set[int] = set()
        self._log_begins: dict[int, int] = {}
        self._fork_server: ForkServer | None = None
        # Times and the signals to send then; None means to stop waiting.
        self._stages: list[tuple[float, signal.Signals | None]] = []
        self._stopping = False
        self._output_watch = _OutputWatch()
        self._killed_by: dict[int, str] = {}  # Signals that were sent to all, except SIGINT, with the reason.
        self._oom_kills = oom_kills()
        self._collected: list[Exit] = []  # `reap` has not returned these yet.

    def start(self, rank: int, command: Sequence[str], environment: Mapping[str, str], log_file: Path | None) -> None:
        """Start one worker; its output goes to ``log_file``, or to this process's own output."""
        self._note(Start(rank, command, environment, log_file))
        try:
            process = _open_process(command, environment, log_file)
        except OSError as exc:
            text = limit_text(exc)
            if not text:
                raise
            raise ConfigurationError(f"cannot start rank {rank}: {text}") from exc
        self._children[rank] = ChildProcess(process.pid, process)
        if self._warden is not None:
            self._warden.watch(process.pid)

    def start_forked(
        self, program: Program, args: Sequence[str], preload: Sequence[str], starts: Sequence[Start]
    ) -> None:
        """Fork workers from one process that has imported ``preload``; fall back to `start`.

        They count as `running` immediately; `reap` watches them once they are forked.
        """
        for start in starts:
            self._note(start)
        try:
            self._fork_server = ForkServer(program, args, preload, starts)
        except (OSError, ValueError) as exc:
            self._start_one_by_one(starts, f"cannot start the fork server ({exc})")

    def _note(self, start: Start) -> None:
        """Record where the new output starts; remove the exception of an earlier process."""
        self._starts[start.rank] = start
        self._log_begins[start.rank] = 0
        if start.log_file is not None:
            with contextlib.suppress(OSError):
                self._log_begins[start.rank] = start.log_file.stat().st_size
            with contextlib.suppress(OSError):
                error_file(start.log_file).unlink()

    def _start_one_by_one(self, starts: Sequence[Start], why: str) -> None:
        log.warning("%s: starting the workers one by one", why)
        for start in starts:
            self.start(*start)

    def _take_forked(self, server: ForkServer) -> None:
        """Watch the workers of the fork server; if it has failed, start them one by one."""
        code, pids = server.finish()
        self._fork_server = None
        if code == 0:
            for start, pid in zip(server.starts, pids):
                self.take_over(start, pid)
        elif self.stopping:
            self._collected += [Exit(start.rank, exit_status(code)) for start in server.starts]
        else:
            ended = f"the fork server ended with {described(exit_status(code))}"
            self._start_one_by_one(server.starts, f"{ended}, see {server.starts[0].log_file}")

    def take_over(self, start: Start, pid: int) -> None:
        """Watch a forked worker that is already a child of this process."""
        self._starts[start.rank] = start
        try:
            self._children[start.rank] = child = ChildProcess(pid)
        except PlatoonError as exc:
            self._collected.append(Exit(start.rank, exit_status(-signal.SIGKILL), start.log_file, str(exc)))
            return
        if self._warden is not None:
            self._warden.watch(pid)
        if self.stopping:
            child.signal(signal.SIGKILL)  # It has missed the earlier signals.

    def start_again(self, rank: int) -> None:
        """Restart a worker that has ended; its output is appended to the same log."""
        if rank in self._remote:
            self._remote[rank].start_again()
            self._remote_running.add(rank)
        else:
            self.start(*self._starts[rank])

    def watch_remote(
        self, rank: int, signal_it: Callable[[signal.Signals, bool], None], start_again: Callable[[], None]
    ) -> None:
        """Count a worker of another host as running until `remote_ended`."""
        self._remote[rank] = _Remote(signal_it, start_again)
        self._remote_running.add(rank)

    def remote_ended(self, ended: Exit) -> None:
        """Record that a worker of another host has ended; `reap` returns it."""
        if ended.rank in self._remote_running:
            self._remote_running.discard(ended.rank)
            self._collected.append(self._explained(ended))

    def signal_one(self, rank: int, number: signal.Signals) -> None:
        if rank in self._children:
            self._children[rank].signal(number)

    def offer(self, number: signal.Signals, ranks: Collection[int] | None = None) -> list[int]:
        """Send a signal to all workers (or ``ranks``) whose script has a handler for it.

        Without a handler a worker gets SIGINT if the signal asks for the end of the job, otherwise
        nothing. Returns the running ranks of this host that have no handler.
        """
        chosen = self.running if ranks is None else set(ranks)
        without = []
        if self._fork_server is not None and number not in PASSED_ON:
            self._fork_server.signal(signal.SIGINT)
        for rank, child in self._children.items():
            if rank in chosen and not child.offer(number):
                without.append(rank)
                if number not in PASSED_ON:
                    child.signal(signal.SIGINT)
        for rank in self._remote_running & chosen:
            self._remote[rank].signal(number, True)
        return without

    def adopt(self, rank: int, pid: int | None, holds_lock: Callable[[], bool], has_left: Callable[[], bool]) -> None:
        """Watch a worker that was not started here.

        Without a pid (it is in another pid namespace) its lock is watched, and it is never
        signalled.
        """
        if pid == os.getpid():  # A worker in this very process is neither awaited nor signalled.
            self._collected.append(Exit(rank, 0))
            return
        try:
            self._children[rank] = LockHolder(holds_lock, has_left) if pid is None else ForeignProcess(pid)
        except ProcessLookupError:
            self._collected.append(Exit(rank, 0))
        except (OSError, OverflowError, ValueError):  # Too many files may be open.
            self._children[rank] = LockHolder(holds_lock, has_left)

    @property
    def fds(self) -> list[int]:
        """File descriptors that become readable once `reap` returns something."""
        server = [] if self._fork_server is None else [self._fork_server.fd]
        return server + [child.fd for child in self._children.values() if child.fd is not None]

    @property
    def some_without_fd(self) -> bool:
        """Whether the end of some process must be polled, for it has no descriptor in `fds`."""
        return bool(self._collected) or any(child.fd is None for child in self._children.values())

    @property
    def running(self) -> set[int]:
        """Ranks whose process is not known to have ended."""
        to_fork = [] if self._fork_server is None else [start.rank for start in self._fork_server.starts]
        return {*self._children, *self._remote_running, *to_fork, *(ended.rank for ended in self._collected)}

    def reap(self) -> list[Exit]:
        """Collect the processes that ended since the last call; kill the rest of their groups."""
        if self._fork_server is not None and self._fork_server.ready:
            self._take_forked(self._fork_server)
        for rank, child in list(self._children.items()):
            ended = child.poll()
            if ended is not None:
                self._remove(rank, ended)
        exits, self._collected = self._collected, []
        return exits

    def _remove(self, rank: int, ended: Ended) -> None:
        self._children.pop(rank).close()
        self._output_watch.check(self._starts, ended=True)
        start = self._starts.get(rank)
        log_file = None if start is None else start.log_file
        failure = None
        if ended.status and start is not None and log_file is not None:
            failure = find_failure(log_file, start.environment, rank)
        if failure is not None and failure.kind == INTERRUPTED:
            failure = None
        at = time.time() if failure is None else failure.at
        begin = self._log_begins.get(rank, 0)
        self._collected.append(self._explained(Exit(rank, ended.status, log_file, ended.why, failure, begin, at)))

    def _explained(self, ended: Exit) -> Exit:
        """Add the reason if a signal to all workers, or a lack of memory, ended the process."""
        before, self._oom_kills = self._oom_kills, oom_kills() if ended.status == _KILLED else self._oom_kills
        if not ended.why and not self._killed_by and self._oom_kills > before:
            return ended._replace(
                why="killed by SIGKILL, because the memory of its control group or of the machine was full"
            )
        if ended.why or ended.status - 128 not in self._killed_by:
            return ended
        number = ended.status - 128
        return ended._replace(why=f"killed by {signal.Signals(number).name}, {self._killed_by[number]}")

    def stop(self, grace_s: float, first: signal.Signals = signal.SIGINT) -> None:
        """Start to end all processes; call `escalate` repeatedly until none is running.

        They get SIGINT immediately, or ``first`` if their script handles it, SIGTERM after
        ``grace_s`` seconds and SIGKILL half a second later. After five more seconds they are
        abandoned.
        """
        if not self._stopping:
            self._stopping = True
            killed = time.monotonic() + grace_s + _TERM_TO_KILL_S
            self._stages = [
                (killed - _TERM_TO_KILL_S, signal.SIGTERM),
                (killed, signal.SIGKILL),
                (killed + timeout("end"), None),
            ]
            if first == signal.SIGINT:  # Descendants of the workers get it too.
                self._signal(first)
            else:
                self.offer(first)
        self.escalate()

    def escalate(self) -> None:
        """Send the signals that are due after `stop`; also warn once if output is lost."""
        self._output_watch.check(self._starts)
        while self._stages and time.monotonic() >= self._stages[0][0]:
            _, number = self._stages.pop(0)
            if number is None:
                self._abandon_all()
            else:
                self._signal(number)

    def _signal(self, number: signal.Signals, why: str = "because the grace period was over") -> None:
        if self._fork_server is not None:
            self._fork_server.signal(number)
        for child in self._children.values():
            child.signal(number)
        for rank in self._remote_running:
            self._remote[rank].signal(number, False)
        if number != signal.SIGINT:
            self._killed_by[number] = why
        if number == signal.SIGKILL:
            self._abandon([rank for rank, child in self._children.items() if isinstance(child, LockHolder)])

    def _abandon(self, ranks: Sequence[int]) -> None:
        """Stop waiting for processes that SIGKILL does not end."""
        for rank in ranks:
            log.warning("rank %d is %s", rank, _LEFT_RUNNING)
            self._remove(rank, Ended(1, _LEFT_RUNNING))

    def _abandon_all(self) -> None:
        self._abandon(list(self._children))
        for rank in list(self._remote_running):
            log.warning("rank %d is %s", rank, _LEFT_RUNNING)
            self.remote_ended(Exit(rank, 1, why=_LEFT_RUNNING))
        if self._fork_server is not None:
            log.warning("the fork server is %s", _LEFT_RUNNING)
            self._fork_server.give_up()
            starts, self._fork_server = self._fork_server.starts, None
            self._collected += [Exit(start.rank, 1, start.log_file, _LEFT_RUNNING) for start in starts]

    @property
    def stopping(self) -> bool:
        """Whether `stop` or `kill` was called."""
        return self._stopping

    def kill(self) -> None:
        """Kill all processes and collect those of this host; `reap` returns their exits."""
        deadline = time.monotonic() + timeout("end")
        self._stopping, self._stages = True, [(deadline, None)] if self._remote_running else []
        self._signal(signal.SIGKILL, "because the job had to end immediately")
        while self._children or self._fork_server is not None:
            self._collected = self.reap()
            if time.monotonic() >= deadline:
                self._abandon_all()
            elif self._children or self._fork_server is not None:
                time.sleep(SHORT_POLL_S)


def _open_process(
    command: Sequence[str], environment: Mapping[str, str], log_file: Path | None
) -> subprocess.Popen[bytes]:
    """Start a process as the leader of a new session, with its output in a log or in our own."""
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(os.fdopen(open_log(log_file), "ab", 0)) if log_file is not None else None
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            start_new_session=True,
        )
