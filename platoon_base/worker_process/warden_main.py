"""The warden: a process that ends what a killed launcher leaves. Standard library only.

A worker that is stopped, or holds the GIL, cannot end itself. Usage: ``python -ISE warden_main.py
FOLDER SOON_S LATE_S COMMAND``, with the workers' process ids on standard input, one on a line, and
``done`` at the end of the job. ``SOON_S`` after the end of the launcher it kills the workers. Those
that detected this end, shown by a file ``detected-PID`` in FOLDER, have until ``LATE_S``. COMMAND
removes the memory and the folder of the job. SIGTERM ends the wait.
"""

import contextlib
import os
import select
import signal
import sys
import time

_POLL_INTERVAL_S = 0.2
_KILL_TO_ABANDON_S = 10.0


def main() -> None:
    """Watch the launcher and its workers; return only if the job did not end in order."""
    folder, soon, late, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # Engines signal all processes of a job.
    workers: dict[int, int] = {}
    if _watch(workers):
        os._exit(0)
    _end(workers, folder, float(soon), float(late))
    if os.path.isdir(folder):
        os.execv(command[0], command)


def _watch(workers: dict[int, int]) -> bool:
    """Keep a pidfd of each running worker; return whether the job has ended in order."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    with contextlib.suppress(OSError):
        # A forked child may hold the pipe open.
        poller.register(os.pidfd_open(os.getppid()), select.POLLIN)
    rest = b""
    while True:
        ready = {fd for fd, _ in poller.poll()}
        if 0 in ready:
            data = os.read(0, 1 << 16)
            *lines, rest = (rest + data).split(b"\n")
            if b"done" in lines:
                return True
            for line in lines:
                with contextlib.suppress(OSError):
                    workers[int(line)] = fd = os.pidfd_open(int(line))
                    poller.register(fd, select.POLLIN)
        for pid, fd in list(workers.items()):
            if fd in ready:  # The launcher has ended its group.
                poller.unregister(fd)
                os.close(workers.pop(pid))
                ready.discard(fd)
        if (0 in ready and not data) or ready - {0}:
            return False


def _end(workers: dict[int, int], folder: str, soon_s: float, late_s: float) -> None:
    hurried = False

    def hurry(number: int, frame: object) -> None:
        nonlocal hurried
        hurried = True

    signal.signal(signal.SIGTERM, hurry)
    began = time.monotonic()
    while workers and time.monotonic() < began + late_s + _KILL_TO_ABANDON_S:
        for pid, fd in list(workers.items()):
            detected = os.path.exists(os.path.join(folder, f"detected-{pid}"))
            if _ended(fd):
                del workers[pid]
                if _state(pid) in ("", "Z"):  # Otherwise the pid has been reused.
                    _kill_group(pid)
            elif hurried or time.monotonic() > began + (late_s if detected else soon_s):
                _kill_group(pid)
        if workers:
            time.sleep(_POLL_INTERVAL_S)


def _ended(fd: int) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


def _state(pid: int) -> str:
    """Return the state of a process, such as Z for a zombie; '' without such a process."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
