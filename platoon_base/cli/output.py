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

__all__ = ["OutputBuffer", "lenient_output", "lost_output", "output_error", "watch_output"]

_READER_HAS_GONE = (errno.EPIPE, errno.ECONNRESET)


class OutputBuffer(io.BufferedIOBase):
    """A buffer in front of a file descriptor, which notes the first error, such as that of a full disk.

    Ctrl-C may come at any moment, and nothing is written twice: what is written, and what is left, the buffer in C
    knows. An interrupt may lose what comes in at that moment.

    Parameters
    ----------
    descriptor : int
        Stays open.

    Attributes
    ----------
    error : OSError or None
        The first one.
    lenient : bool
        Whether errors are not raised. Output that could not be written is lost; later output may find room again.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._file = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - for as long as the process lives
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
        """Take data; returns the number of bytes that are done with, which is all."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            try:
                if self._file.closed:  # it was given up: there may be room again
                    self._file = open(self._descriptor, "wb", closefd=False)  # noqa: SIM115
                rest = rest[self._file.write(rest) :]
            except BlockingIOError as exc:
                rest = rest[exc.characters_written :]
                self._wait()
            except (OSError, ValueError) as exc:
                self._record_error(exc)
                break
        return size

    def flush(self) -> None:
        """Write what was taken."""
        while not self._file.closed:  # or else it was given up, with all that was in it
            try:
                return self._file.flush()
            except BlockingIOError:  # the descriptor is another process's too, which wants it so
                self._wait()
            except (OSError, ValueError) as exc:
                return self._record_error(exc)

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            select.select([], [self._descriptor], [])

    def _record_error(self, error: Exception) -> None:
        """Note an error; if it is not raised, forget what could not be written."""
        if isinstance(error, OSError):
            self.error = self.error or error
        if not self.lenient:
            raise error
        if isinstance(error, OSError):  # else another thread has just given the buffer up
            self._file.raw.close()


def watch_output() -> None:
    """Have `OutputBuffer` write standard output and standard error; one that is closed leads nowhere from now on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            lines = stream.line_buffering or name == "stderr"
            buffer = OutputBuffer(stream.fileno())
            setattr(sys, name, io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=lines))


def lenient_output() -> None:
    """From now on raise nothing when output cannot be written; the last flush changes no exit status either."""
    for stream in (sys.stdout, sys.stderr):
        buffer = _buffer_of(stream)
        if buffer is not None:
            buffer.lenient = True


def output_error() -> OSError | None:
    """Return the first error of standard output, if there was any."""
    buffer = _buffer_of(sys.stdout)
    return None if buffer is None else buffer.error


def lost_output() -> str:
    """Say why a part of standard output could not be written; empty if all was, or if its reader has gone."""
    error = output_error()
    return "" if error is None or error.errno in _READER_HAS_GONE else error.strerror or str(error)


def _buffer_of(stream: Any) -> OutputBuffer | None:
    buffer = getattr(stream, "buffer", None)
    return buffer if isinstance(buffer, OutputBuffer) else None
