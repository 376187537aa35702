"""Limits of the system that a job checks before it begins: open files, and room on the disk."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from pathlib import Path

from platoon_base.errors import ConfigurationError

__all__ = ["require_descriptors", "require_room"]

_PROBE_BYTES = 1 << 16


def require_descriptors(more: int) -> None:
    """Make sure that this process can open ``more`` files and sockets besides those it has; raises the soft limit.

    Raises
    ------
    ConfigurationError
        If the hard limit is too low. ZeroMQ would end the process in the middle of something instead.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + more
    if resource.RLIM_INFINITY != soft < needed:
        if resource.RLIM_INFINITY != hard < needed:
            raise ConfigurationError(
                f"got a limit of {hard} open files (ulimit -Hn), this process needs {needed}: raise it in "
                "/etc/security/limits.conf or with `docker run --ulimit nofile=...`, or start fewer workers"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def require_room(folder: Path, what: str) -> None:
    """Make sure that files can be written to a folder, which is made if needed.

    Raises
    ------
    ConfigurationError
        If the folder cannot be made, or not be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        raise ConfigurationError(
            f"{what} cannot be written to {folder}: {exc.strerror or exc} "
            f"({shutil.disk_usage(there).free / 1e6:.1f} MB free); make room, or name another folder"
        ) from exc
