"""Open files for reading without waiting for a named pipe or a device."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

__all__ = ["open_regular", "open_without_wait"]


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
