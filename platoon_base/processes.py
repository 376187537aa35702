"""Start, watch and stop the worker processes. Every exit or signal becomes a result."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from platoon_base.prefork import Nursery, Start

__all__ = ["Children", "Exit", "exit_status"]

log = logging.getLogger(__name__)

# A worker is asked, told, and made to end; the whole sequence is under the 2 s that Ctrl-C may take.
_ESCALATION = ((0.0, signal.SIGINT), (0.8, signal.SIGTERM), (1.3, signal.SIGKILL))


class Exit(NamedTuple):
    """How a worker process ended.

    Attributes
    ----------
    rank : int
    status : int
        Exit status as a shell shows it: 128 + n for a process that died of signal n. 0 for an adopted process,
        whose status only its own parent learns.
    log_file : Path or None
        Where its output went, if it was started here.
    """

    rank: int
    status: int
    log_file: Path | None = None

    def __str__(self) -> str:
        if self.status > 128:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(self.status - 128).name}"
        return f"exit status {self.status}"


def exit_status(returncode: int) -> int:
    """Turn `subprocess`'s return code into what a shell shows."""
    return returncode if returncode >= 0 else 128 - returncode


class _Child:
    """A process to watch.

    Parameters
    ----------
    pid : int
    process : subprocess.Popen, optional
        If it was started here.
    own : bool
        Whether it is a child of this process, which then learns its status, and the head of its process group.
    """

    def __init__(self, pid: int, process: subprocess.Popen[bytes] | None = None, *, own: bool) -> None:
        self.pid = pid
        self.process = process
        self.own = own
        self.pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit status once the process is gone."""
        if self.process is not None:
            code = self.process.poll()
            return None if code is None else exit_status(code)
        if self.own:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            return None if pid == 0 else exit_status(os.waitstatus_to_exitcode(status))
        return 0 if _exited(self.pidfd) else None

    def signal(self, number: signal.Signals) -> None:
        """Signal a worker of this process together with all its descendants, an adopted one alone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.own:
                os.killpg(self.pid, number)
            else:
                signal.pidfd_send_signal(self.pidfd, number)


def _exited(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return False


class Children:
    """The worker processes of one job, by rank.

    Each is the leader of a process group of its own, so that what it started ends with it.
    """

    def __init__(self) -> None:
        self._children: dict[int, _Child] = {}
        self._starts: dict[int, Start] = {}
        self._nursery: Nursery | None = None
        self._unborn: list[Start] = []  # what the nursery is to fork
        self._stop_began: float | None = None
        self._stop_stage = 0
        self._collected: list[Exit] = []  # by `kill`, and not told of yet

    def start(self, rank: int, command: Sequence[str], environment: Mapping[str, str], log_file: Path | None) -> None:
        """Start one worker; its output goes to ``log_file``, or to this process's own."""
        self._starts[rank] = Start(rank, command, environment, log_file)
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(open(log_file, "ab", buffering=0)) if log_file is not None else None
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
            )
        self._children[rank] = _Child(process.pid, process, own=True)

    def start_forked(self, script: str, args: Sequence[str], preload: Sequence[str], starts: Sequence[Start]) -> None:
        """Start workers from one process that has imported the modules in ``preload``; if that fails, each by itself.

        They are among `running` from now on; `reap` takes delivery of them.
        """
        self._unborn = list(starts)
        self._starts.update({start.rank: start for start in starts})
        try:
            self._nursery = Nursery(script, args, preload, starts)
        except (OSError, ValueError) as exc:
            self._start_one_by_one(f"cannot prepare workers in common ({exc})")

    def _start_one_by_one(self, why: str) -> None:
        log.warning("%s: they start one by one", why)
        starts, self._unborn = self._unborn, []
        for start in starts:
            self.start(*start)

    def _take_delivery(self) -> list[Exit]:
        """Add the workers that the nursery has forked, or do without it if it failed."""
        if self._nursery is None:
            return []
        code, pids = self._nursery.finish()
        self._nursery = None
        if code == 0:
            starts, self._unborn = self._unborn, []
            for start, pid in zip(starts, pids):
                self._children[start.rank] = child = _Child(pid, own=True)
                if self.stopping:
                    child.signal(signal.SIGKILL)  # it has missed the earlier signals
            return []
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        if self.stopping:
            starts, self._unborn = self._unborn, []
            return [Exit(start.rank, exit_status(code)) for start in starts]
        ended = Exit(-1, exit_status(code))
        self._start_one_by_one(f"preparing workers in common ended with {ended}, see {self._unborn[0].log_file}")
        return []

    def start_again(self, rank: int) -> None:
        """Start a worker that has ended by the same command once more, with its output after the first one's."""
        self.start(*self._starts[rank])

    def adopt(self, rank: int, pid: int) -> bool:
        """Watch a process of this host that somebody else started; False if there is none, or it is this one."""
        if pid == os.getpid():
            return False
        try:
            self._children[rank] = _Child(pid, own=False)
        except (OSError, OverflowError, ValueError):
            return False
        return True

    @property
    def fds(self) -> list[int]:
        """File descriptors that can be read as soon as there is something to `reap`."""
        nursery = [] if self._nursery is None else [self._nursery.fd]
        return nursery + [child.pidfd for child in self._children.values()]

    @property
    def running(self) -> set[int]:
        """Ranks whose process has not been seen to end."""
        return {*self._children, *(start.rank for start in self._unborn)}

    def reap(self) -> list[Exit]:
        """Collect the processes that ended since the last call, and end what they left running."""
        exits, self._collected = self._collected, []
        exits += self._take_delivery() if self._nursery is not None and self._nursery.ready else []
        for rank, child in list(self._children.items()):
            status = child.poll()
            if status is None:
                continue
            if child.own:
                child.signal(signal.SIGKILL)
            os.close(child.pidfd)
            del self._children[rank]
            exits.append(Exit(rank, status, self._starts[rank].log_file if rank in self._starts else None))
        return exits

    def stop(self) -> None:
        """Begin to end all processes; call `escalate` again and again until none is running."""
        if self._stop_began is None:
            self._stop_began = time.monotonic()
        self.escalate()

    def escalate(self) -> None:
        """After `stop`: send the signal whose time has come."""
        if self._stop_began is None:
            return
        waited = time.monotonic() - self._stop_began
        while self._stop_stage < len(_ESCALATION) and waited >= _ESCALATION[self._stop_stage][0]:
            number = _ESCALATION[self._stop_stage][1]
            if self._nursery is not None:
                self._nursery.signal(number)
            for child in self._children.values():
                child.signal(number)
            self._stop_stage += 1

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop_began is not None

    def kill(self) -> None:
        """End all processes at once and collect them; the next `reap` tells how they ended."""
        self._stop_began = self._stop_began or time.monotonic()
        if self._nursery is not None:
            self._nursery.signal(signal.SIGKILL)
            self._take_delivery()
        for child in self._children.values():
            child.signal(signal.SIGKILL)
        for child in self._children.values():
            if child.own:
                select.select([child.pidfd], [], [], 10)
        self._collected = self.reap()
