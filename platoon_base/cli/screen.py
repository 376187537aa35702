"""The screen of a running job: the workers' output, warnings and failures above the table.

As an observer it has a thread of its own: a stopped terminal, or a pipe without a reader, does not
block the job.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from platoon_base.cli.report import Display, as_text, is_live
from platoon_base.cli.run_recorder import StragglerWatch
from platoon_base.cli.worker_output import Failures, LogLines, WorkerWarnings
from platoon_base.controller.departures import leader_of
from platoon_base.controller.outcome import Result, Snapshot
from platoon_base.job.starting import log_file
from platoon_base.system.job_paths import path_of

TEES = ("0", "all", "none")
_DRAW_S = 0.9  # Failures are shown at the next poll; drawing is slow, so it is less frequent.
_TERMINAL_BYTES, _PIPE_BYTES = 2**14, 2**20  # Maximum output per worker and poll.


class Screen:
    """Shows a running job on a console; an observer, and a context manager around its observation."""

    name, opening, limit_s = "the screen", "", None

    def __init__(
        self,
        console: Console,
        folder: Path,
        workers: int,
        tee: str = "0",
        title: str = "",
    ) -> None:
        self._console = console
        self._display = Display(console, summary_follows=True, title=title)
        self._stragglers = StragglerWatch()
        self.failures = Failures(folder, workers)
        self._terminal_request = path_of(folder, "terminal")
        self._follows_leader = tee == "0"
        whole: Sequence[int] = range(workers) if tee == "all" else [0] if tee == "0" else []
        self._shows_rank_0 = 0 in whole
        paths = [*(log_file(folder, rank) for rank in range(workers)), path_of(folder, "server_log")]
        self._lines = LogLines(paths, whole, _TERMINAL_BYTES if console.is_terminal else _PIPE_BYTES)
        self._warnings = WorkerWarnings(workers)
        self._next_draw = 0.0
        self._snapshot: Snapshot | None = None
        self._shown: Snapshot | None = None

    def __enter__(self) -> Screen:
        self._display.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._display.__exit__(*exc)

    def take(self, snapshot: Snapshot) -> None:
        """Set the state of the job that is shown next."""
        self._snapshot = snapshot

    def close(self, result: Result | None = None) -> None:
        self.poll(last=True)

    def _hand_over(self) -> None:
        """Remove the table when a worker stops at a breakpoint: its debugger needs the terminal."""
        if self._terminal_request.exists():
            if self._display.pause():
                self._print(Text("worker 0 is at a breakpoint: the table is off from here on; Ctrl-C ends the job"))
            self._terminal_request.unlink(missing_ok=True)

    def poll(self, last: bool = False) -> None:
        self._hand_over()
        snapshot = self._snapshot
        failed, stopping = (snapshot.failed, snapshot.stop_reason is not None) if snapshot is not None else ((), False)
        if snapshot is not None and self._follows_leader:
            self._lines.show_whole(leader_of(snapshot))
        # A worker writes its traceback after its error file, so measure first.
        self._lines.measure()
        told = list(self.failures.new(failed, stopping, last))
        for rank, failure in self.failures.latest.items():
            self._lines.skip(rank, failure.log_begin, failure.log_end)
        self.failures.latest.clear()
        if not (told or last) and time.monotonic() < self._next_draw:
            return
        self._next_draw = time.monotonic() + _DRAW_S
        texts = [*self._new_output(last), *map(as_text, told)]
        self._display.unfinished = self._lines.unfinished(0) if self._shows_rank_0 else ""
        new = snapshot if snapshot is not self._shown else None
        self._shown = snapshot
        if new is not None:
            straggler = self._stragglers.take(new, time.monotonic())
            if straggler is not None:
                texts.append(Text(f"WARNING: {straggler.line}", style="bold red"))
        if snapshot is not None:
            snapshot = snapshot._replace(failing=frozenset(self.failures.failing))
        drawn = snapshot is not None and bool(texts) and is_live(self._console)
        if snapshot is not None and drawn:
            self._display.show(snapshot, draw=False)  # The next print draws it.
        if texts:
            self._print(Text("\n").join(texts))
        if snapshot is not None and new is not None and not drawn:
            self._display.show(snapshot)

    def _new_output(self, last: bool) -> Iterator[Text]:
        """Yield the workers' new output, then their warnings that are due."""
        now = time.monotonic()
        for line in self._lines.new(last):
            if line.is_warning:
                self._warnings.take(line, now)
                continue
            text = Text(f"[{line.file}] ", style="dim") if line.file else Text()
            yield text.append_text(Text.from_ansi(line.text)) if "\x1b" in line.text else text.append(line.text)
        for warning in self._warnings.new(now, last):
            yield Text(warning, style="bold red")

    def _print(self, text: Text) -> None:
        """Print new text in one call: on a terminal each call redraws the table."""
        if self._console.is_terminal:
            self._console.print(text, soft_wrap=True)
        else:  # Rich is slow with large texts.
            self._console.file.write(f"{text.plain}\n")
            self._console.file.flush()
