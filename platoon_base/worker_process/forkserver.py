"""The fork server seen from the launcher: it imports a script's modules once and forks workers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence

from platoon_base.system.environment import FRAMEWORK_RANK, PREFIX
from platoon_base.system.own_files import open_log
from platoon_base.system.process import PR_SET_CHILD_SUBREAPER, is_subreaper, prctl
from platoon_base.timeouts import timeout
from platoon_base.worker_process.program import Program, Start, python_main

__all__ = ["DONE", "ForkServer"]

DONE = b"done\n"


class ForkServer:
    """A running fork server, and the reports that it sends.

    The environments of ``starts`` may differ only in PLATOON_ variables and FRAMEWORK_RANK; other
    differences raise ValueError. While the fork server runs, this process is a "child subreaper":
    when the fork server ends, its workers become children of this process, which can read their
    exit status.
    """

    def __init__(
        self,
        program: Program,
        args: Sequence[str],
        preload: Sequence[str],
        starts: Sequence[Start],
    ) -> None:
        self.starts = list(starts)
        common = set.intersection(*(set(start.environment.items()) for start in starts))
        spec = {
            "parent": os.getpid(),
            "timeout_s": timeout("preload"),
            "program": [*program.argv, *args],
            "preload": list(preload),
            "workers": [_spec_of(start, common) for start in starts],
        }
        self._fd, report = os.pipe()
        self._was_subreaper = is_subreaper()
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        os.set_blocking(self._fd, False)
        self._report = b""
        self._complete = False
        try:
            with contextlib.ExitStack() as stack:
                stdin = stack.enter_context(tempfile.TemporaryFile("w+"))
                json.dump({**spec, "report": report}, stdin)
                stdin.seek(0)
                log = starts[0].log_file
                output = stack.enter_context(os.fdopen(open_log(log), "ab", 0)) if log is not None else None
                self._process = subprocess.Popen(
                    python_main("platoon_base.worker_process.forkserver_main"),
                    env=dict(common),
                    stdin=stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT if output is not None else None,
                    start_new_session=True,
                    pass_fds=[report],
                )
        except BaseException:
            os.close(self._fd)
            self._restore_subreaper()
            raise
        finally:
            os.close(report)

    @property
    def fd(self) -> int:
        """A file descriptor that is readable when the fork server has something to report."""
        return self._fd

    @property
    def ready(self) -> bool:
        """Whether the fork server has sent its whole report; then `finish` does not wait."""
        with contextlib.suppress(BlockingIOError):
            while not self._complete:
                data = os.read(self._fd, 1 << 16)
                self._report += data
                # At the end of the report all workers lead sessions, or the fork server is dead.
                self._complete = not data
        return self._complete

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def finish(self) -> tuple[int, list[int]]:
        """Collect the fork server; return its return code and the pids of the workers.

        The workers are children of this process and lead their sessions. A fork server that failed
        leaves none: the workers it had forked never ran the script.
        """
        os.close(self._fd)
        code = self._process.wait()
        self.signal(signal.SIGKILL)  # This ends its descendants too.
        self._restore_subreaper()
        pids = self._forked()
        if self._report.endswith(DONE):
            return 0, pids
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        return code or 1, []

    def give_up(self) -> None:
        """Abandon a fork server that SIGKILL does not end; kill the workers it has forked."""
        os.close(self._fd)
        for pid in self._forked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.poll()
        self._restore_subreaper()

    def _forked(self) -> list[int]:
        lines = self._report.splitlines(keepends=True)
        return [int(line) for line in lines if line.endswith(b"\n") and line != DONE]

    def _restore_subreaper(self) -> None:
        if not self._was_subreaper:
            prctl(PR_SET_CHILD_SUBREAPER, 0)


def _spec_of(start: Start, common: set[tuple[str, str]]) -> dict[str, object]:
    own = {name: value for name, value in start.environment.items() if (name, value) not in common}
    if any(not name.startswith(PREFIX) and name != FRAMEWORK_RANK for name in own):
        raise ValueError(f"got workers with different {', '.join(sorted(own))}: start them one by one")
    log = None if start.log_file is None else str(start.log_file)
    return {"environment": own, "log": log}
