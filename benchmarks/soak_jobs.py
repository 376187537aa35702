"""Jobs of the soak: launch them, end them, and find what they have left."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import psutil

from platoon_base.job import files as job_files

SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_S = 60.0


def launch(
    folder: str, script: str, *arguments: object, workers: int, options: tuple[str, ...] = ()
) -> subprocess.Popen:
    command = [sys.executable, "-m", "platoon_base", "launch", "-n", str(workers), "--log-dir", f"{folder}/logs"]
    return subprocess.Popen(
        [*command, *options, str(SCRIPTS / script), folder, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end_of(process: subprocess.Popen) -> str | None:
    """Wait for a launcher, and return its output; None, and nothing is left of it, if it does not end."""
    try:
        return process.communicate(timeout=TIMEOUT_S)[0]
    except subprocess.TimeoutExpired:
        kill(tree(process.pid))
        process.communicate()
        return None


def tree(pid: int) -> list[psutil.Process]:
    """Name a process and all that it has started."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def leftovers() -> set[str]:
    """Name what jobs that are over have left, and processes of ours that are still there."""
    left = {f"{leftover.path}" for leftover in job_files.leftovers()}
    return left | {f"process {child.pid}" for child in psutil.Process().children(recursive=True)}


def middle(values: list[float]) -> float:
    """Return the median of sorted values."""
    return values[len(values) // 2] if values else float("nan")
