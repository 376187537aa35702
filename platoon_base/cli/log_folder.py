"""The folder with the logs of one run: locked by the job, with earlier logs moved aside."""

from __future__ import annotations

import datetime
import os
import re
from pathlib import Path
from types import TracebackType

from platoon_base.errors import ConfigurationError
from platoon_base.job.starting import log_file
from platoon_base.system.folder_lock import FolderLock
from platoon_base.system.job_paths import FILES, path_of, pattern_of
from platoon_base.system.limits import require_room
from platoon_base.system.regular_files import open_regular

__all__ = ["LogFolder", "log_file", "new_log_folder", "tail"]

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


class LogFolder:
    """A folder for the logs of one run, locked unless its checkpoints lock it; a context manager.

    Logs of an earlier run are moved to ``earlier/<date>_<time>``.
    """

    def __init__(self, path: Path, lock: bool = True) -> None:
        self.path = path
        self._wants_lock = lock
        self._lock: FolderLock | None = None

    def __enter__(self) -> LogFolder:
        require_room(self.path, "logs")
        try:
            self._lock = FolderLock(self.path) if self._wants_lock else None
        except BlockingIOError:
            raise ConfigurationError(
                f"another job writes its logs to {self.path}: wait until it ends, or name another --log-dir"
            ) from None
        except OSError as exc:
            raise ConfigurationError(f"cannot write logs to {self.path}: {exc}; name another --log-dir") from exc
        try:
            self._rename_previous()
        except OSError as exc:
            self._unlock()
            raise ConfigurationError(
                f"cannot move the earlier logs in {self.path}: {exc}; name another --log-dir"
            ) from exc
        return self

    def _rename_previous(self) -> None:
        found = [self.path / name for name in os.listdir(self.path) if _OF_RUN.fullmatch(name)]
        if not found:
            return
        last = datetime.datetime.fromtimestamp(max(path.stat().st_mtime for path in found))
        earlier = path_of(self.path, "earlier")
        earlier.mkdir(exist_ok=True)
        folder = _make(earlier, last.strftime(_STAMP))
        for path in found:
            path.rename(folder / path.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()


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
