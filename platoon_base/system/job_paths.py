"""The files of a job by name, in its own folder and in that of its logs: who writes and reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class File(NamedTuple):
    name: str
    writer: str
    reader: str
    of_run: bool = False  # A later run with the same folder of logs moves it to `earlier`.


FILES = {
    # In the folder of the job, which ends with it.
    "description": File("job.json", "controller, deputy", "workers, commands"),
    "control": File("control", "controller, deputy", "workers, commands"),
    "memory": File("memory-{what}", "creator of the memory", "its users"),
    "warden": File("warden", "launcher", "platoon stop --kill"),
    "detected": File("detected-{pid}", "worker without a launcher", "warden_main.py"),
    "batches": File("data-{server}", "batch server", "workers"),
    "server_failure": File("server-failed", "batch server, launcher", "workers"),
    # In the folder of the logs.
    "log": File("rank{rank}.log", "worker", "screen, platoon logs", True),
    "failure": File("rank{rank}.error.json", "worker", "launcher", True),
    "terminal": File("rank0.terminal", "worker in a debugger", "screen"),
    "first_failure": File("error.json", "launcher", "users, engines", True),
    "story": File("story.json", "launcher", "report, trace, platoon jobs", True),
    "server_log": File("data_server.log", "batch server", "screen", True),
    "courier_log": File("courier{host}.log", "courier", "users", True),
    "trace": File("trace", "workers", "launcher"),
    "checkpoints": File("checkpoints", "controller", "a resumed job"),
    "earlier": File("earlier", "launcher", "users"),
}


def path_of(folder: Path | str, file: str, **values: object) -> Path:
    """Return the path of a file of `FILES`; ``values`` complete its name."""
    return Path(folder, FILES[file].name.format(**values))


def pattern_of(file: str) -> str:
    """Return a regular expression for the names of a file, with the number as its group."""
    return re.sub(r"\\\{\w+\\\}", r"(\\d+)", re.escape(FILES[file].name))
