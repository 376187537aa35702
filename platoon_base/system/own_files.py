"""Opening files of this user in folders that others can write to: no other user's file, no link, pipe or device."""

from __future__ import annotations

import os
import stat

__all__ = ["SAFE_FLAGS", "open_own"]

SAFE_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe is not waited for


def open_own(path: str | os.PathLike[str], kind: int, flags: int = os.O_RDONLY) -> int:
    """Open a file of this user without following links or waiting.

    Parameters
    ----------
    path : path
    kind : int
        Its kind: `stat.S_IFREG` or `stat.S_IFDIR`.
    flags : int

    Returns
    -------
    int
        A file descriptor.

    Raises
    ------
    OSError
        If there is none; `PermissionError` if it is another user's or of another kind.
    """
    _require_own(path, os.lstat(path), kind)  # opening a device may do something
    fd = os.open(path, flags | SAFE_FLAGS, 0o600)
    try:
        _require_own(path, os.fstat(fd), kind)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _require_own(path: str | os.PathLike[str], status: os.stat_result, kind: int) -> None:
    if stat.S_IFMT(status.st_mode) != kind or status.st_uid != os.geteuid():
        what = "a folder" if kind == stat.S_IFDIR else "a file"
        raise PermissionError(f"{os.fspath(path)} is not {what} of this user")
