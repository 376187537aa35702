"""``platoon jobs``: list the running jobs, or show what has happened in one."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from platoon_base.cli.recent import Recent
from platoon_base.cli.run_files import as_json, read_story
from platoon_base.cli.table import GAP, aligned, cut, duration, workers_line
from platoon_base.coordination.story import Entry
from platoon_base.errors import PlatoonError
from platoon_base.job.files import JobFiles, running
from platoon_base.job.observing import Observer
from platoon_base.system.job_paths import path_of
from platoon_base.worker_process.program import Program

_MIN_CHARACTERS = 40  # The script is at least as wide.
_LEFT_OUT = "..."


def facts(files: JobFiles) -> dict[str, Any]:
    """Return the facts about a job, with the workers' states from its controller."""
    states = "no answer"
    with contextlib.suppress(PlatoonError), Observer(files) as observer:
        recent = Recent()
        snapshot = observer.poll()
        recent.take(snapshot, time.monotonic())
        states = f"stopping: {snapshot.stop_reason}" if snapshot.stop_reason else workers_line(recent)
    origin = files.origin
    return {
        "job": files.job,
        "script": shlex.join(origin.program),
        "title": _title(files),
        "age_s": round(max(0.0, time.time() - origin.began), 1),
        "workers": files.size,
        "state": states,
        "devices": origin.devices,
        "logs": origin.log_folder,
        "folder": files.folder,
        "pid": origin.pid,
    }


def program_of(files: JobFiles) -> str:
    program = files.origin.program
    return (Program.of(program)[0].shown if program else "") or "?"


def _title(files: JobFiles) -> str:
    program = files.origin.program
    return " ".join([program_of(files), shlex.join(Program.of(program)[1])]).rstrip() if program else "?"


def listing(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the jobs as lines of a table; the folder of the logs has a separate line."""
    if not found:
        return []
    rows = [["job", "age", "workers", "devices"]]
    for each in found:
        workers = f"{each['workers'] or '?'}: {each['state']}"
        rows.append([each["job"], duration(each["age_s"]), workers, _devices(each["devices"])])
    begins = aligned(rows, len(rows[0]))
    room = shutil.get_terminal_size().columns - len(begins[0]) - len(GAP)
    scripts = ["script", *(_script(each["script"], max(_MIN_CHARACTERS, room)) for each in found)]
    lines = [f"{begin}{GAP}{script}" for begin, script in zip(begins, scripts)]
    for i, each in reversed(list(enumerate(found, 1))):
        lines.insert(i + 1, f"  logs: {_shortest(each['logs'])}" if each["logs"] else "  logs: none")
    return lines


def _script(command: str, room: int) -> str:
    """Shorten a command to ``room`` characters: leave out folders first, then the last arguments."""
    if not command:
        return "?"
    program, args = Program.of(shlex.split(command))
    words = [shlex.quote(word) for word in args]
    names = _names(program)
    with_fewer_words = [[names[-1], *words[:count], _LEFT_OUT] for count in reversed(range(len(words)))]
    for shown in [*([name, *words] for name in names), *with_fewer_words, [names[-1]]]:
        line = " ".join(shown)
        if len(line) <= room:
            return line
    return cut(names[-1], room - len(_LEFT_OUT))


def _names(program: Program) -> list[str]:
    """Return the names of a program, from the longest to the shortest."""
    if program.is_module or program.is_typed:
        return [program.shown]
    path = _shortest(program.name) if os.path.isabs(program.name) else program.name
    folders = Path(path).parts[:-1]
    return [path, *("/".join([_LEFT_OUT, *folders[i:], program.shown]) for i in range(1, len(folders))), program.shown]


def _devices(devices: Sequence[str]) -> str:
    counts = Counter(devices)
    return " ".join(f"{count} {name}" if count > 1 else name for name, count in counts.items()) or "-"


def _shortest(path: str) -> str:
    try:
        relative = os.path.relpath(path)
    except OSError:  # The working folder was removed.
        return path
    return relative if len(relative) < len(path) else path


@click.command("jobs")
@click.option(
    "--json", "as_json_", is_flag=True, help="As JSON: a list with an entry for each job, or for each change."
)
@click.option(
    "--story",
    metavar="JOB",
    help="Show the event log of JOB: when workers, hosts and couriers changed, and why. For a "
    "job that has ended, name the folder of its logs.",
)
def command(as_json_: bool, story: str | None) -> None:
    """List this user's running jobs: script, age, workers, devices, and the folder of their logs.

    Jobs with another PLATOON_NAMESPACE or TMPDIR are not listed.
    """
    if story is not None:
        entries = _story_of(story)
        click.echo(as_json(entries) if as_json_ else "\n".join(entry.line for entry in entries))
        return
    found = [facts(files) for files in running()]
    if as_json_:
        click.echo(json.dumps(found, indent=2))
        return
    for line in listing(found):
        click.echo(line)
    if not found:
        click.echo("you have no running job", err=True)


def _story_of(job: str) -> list[Entry]:
    """Return the event log of a running job, or of one that has ended, from its folder."""
    if job and path_of(job, "story").is_file():
        return read_story(Path(job))
    with Observer(JobFiles.find(job)) as observer:
        return observer.story()
