"""The launcher's side of the warden, which ends what a killed launcher leaves: `warden_main`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from platoon_base.system.job_paths import path_of
from platoon_base.system.orphan import WORKER
from platoon_base.system.process import readable
from platoon_base.timeouts import timeout

log = logging.getLogger(__name__)

_MAIN = Path(__file__).with_name("warden_main.py")
_ENDED_TIMEOUT_S = 20.0


class Warden:
    """Starts the warden with the first worker; after ``soon_s`` it kills unaware workers."""

    def __init__(self, folder: str, command: Sequence[str], soon_s: float | None = None) -> None:
        # Within this time a worker that runs Python has ended itself.
        soon_s = WORKER.notice_s + timeout("grace") + 1.0 if soon_s is None else soon_s
        self._folder = folder
        late_s = soon_s + timeout("orphan")
        self._command = [
            *(sys.executable, "-ISE", str(_MAIN), folder, f"{soon_s:g}", f"{late_s:g}"),
            *command,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, pid: int) -> None:
        """Let a worker, which leads a process group, end after this process in any state."""
        try:
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                path_of(self._folder, "warden").write_text(str(self._process.pid))
            self._send(b"%d\n" % pid)
        except OSError as exc:
            log.warning("no process will end the workers if this one is killed while they hang: %s", exc)

    def _send(self, line: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(line)
            self._process.stdin.flush()

    def close(self) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            self._send(b"done\n")
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(timeout("end"))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def end_by_warden(folder: str) -> bool:
    """Let the warden of a job without a launcher end the workers; return whether it did."""
    try:
        pid = int(path_of(folder, "warden").read_text())
        fd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return False
    try:
        if os.fsencode(folder) not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            return False  # The pid has been reused.
        signal.pidfd_send_signal(fd, signal.SIGTERM)
        return readable(fd, _ENDED_TIMEOUT_S)
    except OSError:
        return False
    finally:
        os.close(fd)
