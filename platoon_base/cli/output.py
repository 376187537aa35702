"""Standard output and standard error of the commands: what happens when they cannot be written.

Most commands end then, with a line of why. A command that runs a job goes on and leaves out what cannot be written.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from typing import Any

__all__ = ["OutputFile", "lenient_output", "lost_output", "output_error", "watch_output"]

_READER_HAS_GONE = (errno.EPIPE, errno.ECONNRESET)


class OutputFile(io.RawIOBase):
    """A file descriptor to write to, which notes the first error, such as that of a full disk or a lost terminal.

    Parameters
    ----------
    descriptor : int
        Stays open.

    Attributes
    ----------
    error : OSError or None
        The first one.
    lenient : bool
        Whether errors are not raised. Each write tries anew, so output goes on once the disk has room again.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.error: OSError | None = None
        self.lenient = False

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal, which is still there."""
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Write what can be written; returns the number of bytes that are done with."""
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # the descriptor is another process's too, which wants it so
                with contextlib.suppress(OSError):
                    select.select([], [self._descriptor], [])
            except OSError as exc:
                self.error = self.error or exc
                if not self.lenient:
                    raise
                return memoryview(data).nbytes


def watch_output() -> None:
    """Have `OutputFile` write standard output and standard error; one that is closed leads nowhere from now on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            buffer = io.BufferedWriter(OutputFile(stream.fileno()))
            lines = stream.line_buffering or name == "stderr"
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=lines))


def lenient_output() -> None:
    """From now on raise nothing when output cannot be written; the last flush changes no exit status either."""
    for stream in (sys.stdout, sys.stderr):
        file = _file_of(stream)
        if file is not None:
            file.lenient = True


def output_error() -> OSError | None:
    """Return the first error of standard output, if there was any."""
    file = _file_of(sys.stdout)
    return None if file is None else file.error


def lost_output() -> str:
    """Say why a part of standard output could not be written; empty if all was, or if its reader has gone."""
    error = output_error()
    return "" if error is None or error.errno in _READER_HAS_GONE else error.strerror or str(error)


def _file_of(stream: Any) -> OutputFile | None:
    raw = getattr(getattr(stream, "buffer", None), "raw", None)
    return raw if isinstance(raw, OutputFile) else None
