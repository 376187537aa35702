"""Open and write files of this user: links, pipes and devices are refused, and nothing waits."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from platoon_base.errors import ConfigurationError


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read bytes; OSError if it is missing or of another kind."""
    file = open(path, "rb", opener=open_without_wait)  # noqa: SIM115 - the caller closes it
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{os.fspath(path)} is a named pipe or a device, not a file; move it away")
    except BaseException:
        file.close()
        raise
    return file


def open_without_wait(path: str, flags: int) -> int:
    """An ``opener`` for `open`; a pipe without a partner raises or is empty."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


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


# The kernel releases a lock (``flock``, ``F_OFD_SETLK``) once the last descriptor of its open file is
# closed. A forked child has copies of all descriptors, and would keep the locks of a killed parent.


_owned: dict[int, tuple[os.stat_result, int | None]] = {}
_registered = False


def own(fd: int, twin: int | None = None) -> None:
    """Replace a descriptor in forked children by ``twin``, or an empty file, until `disown`."""
    global _registered
    _owned[fd] = os.fstat(fd), twin
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_child=_replace_all)


def disown(fd: int) -> None:
    _owned.pop(fd, None)


def _replace_all() -> None:
    """Replace the descriptors in a child: code with their numbers must not touch other files."""
    if not _owned:
        return
    empty = os.memfd_create("platoon") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
    for fd, (status, twin) in _owned.items():
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(fd), status):  # The number was not reused for another file.
                os.dup2(empty if twin is None else twin, fd, inheritable=False)
    os.close(empty)
    _owned.clear()
