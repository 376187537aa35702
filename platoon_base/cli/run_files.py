"""The folder with the logs of one run, and the files that commands write at the end of a job."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from platoon_base.coordination.story import Entry, Story
from platoon_base.errors import ConfigurationError
from platoon_base.system.folder_lock import FolderLock
from platoon_base.system.job_paths import FILES, path_of, pattern_of
from platoon_base.system.limits import require_room
from platoon_base.system.own_files import open_regular, write_where_named, write_whole
from platoon_base.system.text import legible

_OF_RUN = re.compile("|".join(pattern_of(name) for name, file in FILES.items() if file.of_run))
_STAMP = "%Y-%m-%d_%H-%M-%S"
_PARENT = Path("platoon_logs")
_TAIL_LINES, _TAIL_BYTES = 15, 4096


def new_log_folder(title: str, parent: Path = _PARENT) -> Path:
    """Make a folder for the logs of one run: ``<parent>/<title>/<date>_<time>``."""
    parent = parent / title
    require_room(parent, "logs")
    return _make(parent, datetime.datetime.now().strftime(_STAMP))


def _make(parent: Path, name: str) -> Path:
    folder, number = parent / name, 1
    while True:
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1
            folder = parent / f"{name}_{number}"


@contextlib.contextmanager
def log_folder(path: Path, lock: bool = True) -> Iterator[None]:
    """Use a folder for the logs of one run, locked unless its checkpoints lock it.

    Logs of an earlier run are moved to ``earlier/<date>_<time>``.
    """
    require_room(path, "logs")
    with contextlib.ExitStack() as stack:
        try:
            if lock:
                stack.callback(FolderLock(path).close)
        except BlockingIOError:
            raise ConfigurationError(
                f"another job writes its logs to {path}: wait until it ends, or name another --log-dir"
            ) from None
        except OSError as exc:
            raise ConfigurationError(f"cannot write logs to {path}: {exc}; name another --log-dir") from exc
        try:
            _rename_previous(path)
        except OSError as exc:
            raise ConfigurationError(f"cannot move the earlier logs in {path}: {exc}; name another --log-dir") from exc
        yield


def _rename_previous(folder: Path) -> None:
    found = [folder / name for name in os.listdir(folder) if _OF_RUN.fullmatch(name)]
    if not found:
        return
    last = datetime.datetime.fromtimestamp(max(path.stat().st_mtime for path in found))
    earlier = path_of(folder, "earlier")
    earlier.mkdir(exist_ok=True)
    there = _make(earlier, last.strftime(_STAMP))
    for path in found:
        path.rename(there / path.name)


def tail(path: Path, begin: int = 0) -> str:
    """Return the last lines of a log after the offset ``begin`` in bytes, at most a screen."""
    try:
        with open_regular(path) as file:
            size = max(0, file.seek(0, os.SEEK_END) - begin)
            file.seek(begin + max(0, size - _TAIL_BYTES))
            data = file.read(_TAIL_BYTES)
    except FileNotFoundError:
        return "(there is no log on this host)"
    except OSError as exc:
        return str(exc)
    lines = data.decode(errors="replace").rstrip().splitlines()
    if size > _TAIL_BYTES:
        lines[:1] = [] if len(lines) > _TAIL_LINES else ["...", *lines[:1]]
    shown = lines[-_TAIL_LINES:]
    return "\n".join(shown) if any(line.strip() for line in shown) else "(the log is empty)"


log = logging.getLogger(__name__)


@contextlib.contextmanager
def no_job_fails_by(what: str) -> Iterator[None]:
    """Log an error of the ``with`` block; it does not change the job's outcome."""
    try:
        yield
    except Exception:
        log.exception("cannot make %s; the job's outcome does not change. Please report this bug", what)


def write_json(path: Path, values: Mapping[str, Any]) -> bool:
    """Write values as JSON, with NaN and infinity as null; return whether that succeeded."""
    text = json.dumps(_plain(values), indent=2) + "\n"
    return write_text(path, text, "the summary", f". It is:\n{text}")


def write_text(path: Path, text: str, what: str, instead: str = "\n") -> bool:
    """Write a file, or print why not, and ``instead``, and remove an old one; return success.

    Lone surrogates are escaped.
    """
    try:
        write_where_named(path, legible(text).encode())
    except ConfigurationError as exc:  # A symbolic link of another user stays.
        click.echo(f"platoon: did not write {what}: {exc}{instead}", err=True, nl=False)
        return False
    except OSError as exc:
        if path.is_file():
            try:
                path.unlink()
            except OSError as error:
                click.echo(f"platoon: {path} is from an earlier job and cannot be removed: {error.strerror}", err=True)
        reason = exc.strerror or exc
        click.echo(f"platoon: cannot write {what} to {path} ({reason}){instead}", err=True, nl=False)
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_FILE_BYTES = 2**22


@contextlib.contextmanager
def story_written(folder: Path, story: Story) -> Iterator[None]:
    """Write the event log to the folder of logs at the end of the ``with`` block."""
    try:
        yield
    finally:
        try:
            write_whole(path_of(folder, "story"), as_json(story.entries))
        except OSError as exc:
            log.warning("cannot write the event log of the job to %s: %s", folder, exc)


def as_json(entries: Sequence[Entry]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(entries), indent=2)


def read_story(folder: Path) -> list[Entry]:
    try:
        with open_regular(path_of(folder, "story")) as file:
            return msgspec.json.decode(file.read(_FILE_BYTES), type=list[Entry])
    except (OSError, msgspec.MsgspecError) as exc:
        raise ConfigurationError(
            f"there is no event log in {folder}: {exc}; name a running job, or the folder with "
            "the logs of a job that has ended"
        ) from exc
