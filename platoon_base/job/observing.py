"""Observing, ending and killing a running job from a process that is not part of it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from platoon_base.channels.client import ControlClient
from platoon_base.controller.outcome import Snapshot
from platoon_base.coordination import messages as msg
from platoon_base.coordination.story import Entry
from platoon_base.errors import ConfigurationError, ProtocolError
from platoon_base.job import backends
from platoon_base.job.files import JobFiles
from platoon_base.system.folder_lock import is_locked
from platoon_base.system.process import pid_namespace, readable
from platoon_base.timeouts import POLL_S, timeout
from platoon_base.worker_process.warden import end_by_warden


class Observer:
    """A connection to the controller of one of this user's jobs; a context manager."""

    def __init__(self, files: JobFiles) -> None:
        self._files = files
        self._channel = backends.connect_to(files, lambda: files.alive)
        self._client = ControlClient(self._channel, -1)

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *exc: object) -> None:
        self._channel.close()

    def poll(self) -> Snapshot:
        """Return the state of the job; WorkerLostError if the job has ended."""
        seen = self._client.ask(msg.Watch(protocol=msg.PROTOCOL), msg.Seen, timeout("answer"))
        try:
            return Snapshot.of_message(seen)
        except TypeError as exc:
            raise ProtocolError(f"the job uses another version of this package ({exc}): use that version") from exc

    def story(self) -> list[Entry]:
        """Return the event log, as far as it is kept; raises the errors of `poll`."""
        request = msg.AskStory(protocol=msg.PROTOCOL)
        return self._client.ask(request, msg.StoryReply, timeout("answer")).entries

    def end(self, grace_s: float | None = None) -> None:
        """End the job as Ctrl-C to its launcher does; a second call kills the workers.

        Call it again only after the launcher has started to end the job. Calls that a blocked
        launcher finds together count as one.
        """
        request = msg.EndJob(protocol=msg.PROTOCOL, sent_at=time.monotonic(), grace_s=grace_s)
        self._client.ask(request, msg.Done, timeout("answer"))

    def wait(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self._files.alive:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True


def kill(files: JobFiles) -> None:
    """Kill a job's controller and workers; ConfigurationError if one is not visible or survives."""
    pid = files.origin.pid
    if not pid or files.origin.pid_namespace != pid_namespace() or not pid_namespace():
        raise ConfigurationError(
            f"the processes of job {files.job} are not visible from here: run this command in the container of the job"
        )
    with contextlib.ExitStack() as stack:
        try:
            controller = stack.enter_context(_watched(pid))
        except OSError as exc:
            if end_by_warden(files.folder):
                return
            raise ConfigurationError(f"cannot watch process {pid}, the launcher of job {files.job}: {exc}") from exc
        # While the controller holds the lock, no other process can have its process id.
        if not is_locked(Path(files.folder)):
            if files.alive and not end_by_warden(files.folder):
                raise ConfigurationError(
                    f"the launcher of job {files.job} has ended already, but processes that "
                    "joined the job are still running: they end by themselves; `fuser -v "
                    f"/dev/shm{files.job_state}` lists those that do not"
                )
            return
        workers = []
        for child in _children(pid):
            with contextlib.suppress(OSError):  # it has ended
                fd = stack.enter_context(_watched(child))
                workers += [(child, fd)] if _is_child(child, pid) else []
        signal.pidfd_send_signal(controller, signal.SIGKILL)
        for child, fd in workers:
            if not readable(fd):  # No other process has its process id yet.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(child, signal.SIGKILL)
        for fd in (controller, *(fd for _, fd in workers)):
            if not readable(fd, timeout("end")):
                raise ConfigurationError(
                    f"a process of job {files.job} was killed and does not end: it hangs in a "
                    "device or on a file server; `ps` shows its state"
                )
    files.remove_if_dead()  # A late joiner ends by itself and removes the rest.


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[int]:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def _children(pid: int) -> list[int]:
    """List the children of a process that lead process groups, as all workers do."""
    numbers = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [number for number in numbers if _is_child(number, pid)]


def _is_child(number: int, parent: int) -> bool:
    try:
        words = Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:  # it has ended
        return False
    return (int(words[1]), int(words[2])) == (parent, number)
