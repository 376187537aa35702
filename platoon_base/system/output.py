"""Standard output and standard error of commands and workers, and the handling of errors in writing them.

Most commands end then with a line that says why. Workers and commands that run a job continue without the output.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["OutputBuffer", "lenient_output", "lost_output", "output_error", "watch_output"]

_READER_HAS_GONE = (errno.EPIPE, errno.ECONNRESET)


class OutputBuffer(io.BufferedIOBase):
    """A buffer for a file descriptor that records the first error, such as a full disk.

    After a Ctrl-C at any moment nothing is written twice, since the buffer in C tracks what was written. Data passed in
    at that moment may be lost.

    Parameters
    ----------
    descriptor : int
        Borrowed.
    on_loss : callable, optional
        Called with the first error.
    unbuffered : bool
        Whether to write all data immediately.

    Attributes
    ----------
    error : OSError or None
        The first one.
    lenient : bool
        Whether errors are not raised. Output that could not be written is lost; later output may find room again.
    """

    def __init__(
        self, descriptor: int, on_loss: Callable[[OSError], None] | None = None, unbuffered: bool = False
    ) -> None:
        super().__init__()
        self._descriptor, self._on_loss, self._unbuffered = descriptor, on_loss, unbuffered
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
        """Whether it is a terminal that still exists."""
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Buffer data; return the number of bytes accepted, which is all."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            try:
                if self._file.closed:  # dropped after an error; there may be room again
                    self._file = open(self._descriptor, "wb", closefd=False)  # noqa: SIM115
                rest = rest[self._file.write(rest) :]
            except BlockingIOError as exc:
                rest = rest[exc.characters_written :]
                self._wait()
            except (OSError, ValueError) as exc:
                self._record_error(exc)
                break
        if self._unbuffered:
            self.flush()
        return size

    def flush(self) -> None:
        """Write all buffered data."""
        while not self._file.closed:  # if closed, it was dropped after an error with its data
            try:
                return self._file.flush()
            except BlockingIOError:  # a process that shares the descriptor has made it non-blocking
                self._wait()
            except (OSError, ValueError) as exc:
                return self._record_error(exc)

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            select.select([], [self._descriptor], [])

    def _record_error(self, error: Exception) -> None:
        """Record an error; if it is not raised, drop the data that could not be written."""
        if isinstance(error, OSError) and self.error is None:
            self.error = error
            if self._on_loss is not None:
                self._on_loss(error)
        if not self.lenient:
            raise error
        if isinstance(error, OSError):  # otherwise another thread has just dropped the buffer
            self._file.raw.close()


def watch_output(on_loss: Callable[[OSError], None] | None = None) -> None:
    """Write standard output and standard error through `OutputBuffer`; discard the output of closed ones.

    ``on_loss`` is for workers; it is called with the first error of each stream.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            lines = stream.line_buffering or name == "stderr"
            through = stream.write_through and on_loss is not None  # a command writes whole lines
            buffer = OutputBuffer(stream.fileno(), on_loss, through)
            watched = io.TextIOWrapper(  # type: ignore[type-var]
                buffer, stream.encoding, stream.errors, line_buffering=lines, write_through=through
            )
            setattr(sys, name, watched)
            setattr(sys, f"__{name}__", watched)  # scripts that redirect their output restore this one


def lenient_output() -> None:
    """Ignore errors in writing output from now on, also at the last flush, so that they change no exit status."""
    for stream in (sys.stdout, sys.stderr):
        buffer = _buffer_of(stream)
        if buffer is not None:
            buffer.lenient = True


def output_error() -> OSError | None:
    """Return the first error of standard output, if there was any."""
    buffer = _buffer_of(sys.stdout)
    return None if buffer is None else buffer.error


def lost_output() -> str:
    """Return why a part of standard output could not be written; empty if none is missing or its reader has ended."""
    error = output_error()
    return "" if error is None or error.errno in _READER_HAS_GONE else error.strerror or str(error)


def _buffer_of(stream: Any) -> OutputBuffer | None:
    buffer = getattr(stream, "buffer", None)
    return buffer if isinstance(buffer, OutputBuffer) else None
