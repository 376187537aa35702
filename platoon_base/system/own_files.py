"""Open files of this user in folders that others can write to; refuse links, pipes, devices."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from platoon_base.errors import ConfigurationError
from platoon_base.system.regular_files import open_without_wait

__all__ = ["SAFE_FLAGS", "create_new", "open_log", "open_own", "write_where_named", "write_whole"]

SAFE_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def open_own(path: str | os.PathLike[str], kind: int, flags: int = os.O_RDONLY) -> int:
    """Open a file of ``kind`` of this user without following links; else PermissionError."""
    _require_own(path, os.lstat(path), kind)  # Opening a device may have effects.
    fd = os.open(path, flags | SAFE_FLAGS, 0o600)
    try:
        _require_own(path, os.fstat(fd), kind)
    except BaseException:
        os.close(fd)
        raise
    return fd


def create_new(path: str | os.PathLike[str], flags: int = os.O_WRONLY) -> int:
    """Create a file and return its descriptor; raises FileExistsError also for a link."""
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | SAFE_FLAGS, 0o666)


def open_log(path: str | os.PathLike[str]) -> int:
    """Open or create a log for appending; ConfigurationError unless it is a plain file of ours."""
    try:
        fd = create_new(path, os.O_WRONLY | os.O_APPEND)
    except FileExistsError:
        try:
            fd = open_own(path, stat.S_IFREG, os.O_WRONLY | os.O_APPEND)
        except PermissionError as exc:
            raise ConfigurationError(_not_ours(path)) from exc
        if os.fstat(fd).st_nlink != 1:
            os.close(fd)
            raise ConfigurationError(_not_ours(path)) from None
    os.set_blocking(fd, True)
    return fd


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file, or a link, atomically; raises OSError."""
    unfinished = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    fd = create_new(unfinished)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def write_where_named(path: Path, data: bytes) -> None:
    """Write a file or a pipe at a user's path; ConfigurationError for another user's link."""
    with contextlib.suppress(FileNotFoundError):
        link = os.lstat(path)
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
            raise ConfigurationError(_not_ours(path))
        if not stat.S_ISREG(os.stat(path).st_mode):
            # A named pipe without a reader is an error.
            with open(path, "wb", opener=open_without_wait) as file:
                os.set_blocking(file.fileno(), True)
                file.write(data)
            return
    write_whole(Path(os.path.realpath(path)), data)


def _not_ours(path: str | os.PathLike[str]) -> str:
    return (
        f"not writing to {os.fspath(path)}: it is not a regular file of yours, and another user "
        "may have put it there; name a folder that only you can write to"
    )


def _require_own(path: str | os.PathLike[str], status: os.stat_result, kind: int) -> None:
    if stat.S_IFMT(status.st_mode) != kind or status.st_uid != os.geteuid():
        what = "a folder" if kind == stat.S_IFDIR else "a file"
        raise PermissionError(f"{os.fspath(path)} is not {what} of this user")
