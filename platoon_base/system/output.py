"""Standard output and error, and errors in writing them.

Most commands end at such an error with a line about it. Workers, and commands that run a job,
continue without the output.
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

_READER_HAS_GONE = (errno.EPIPE, errno.ECONNRESET)


class OutputBuffer(io.BufferedIOBase):
    """A buffer for a borrowed descriptor; ``on_loss`` gets the first error, such as a full disk.

    After a Ctrl-C nothing is written twice, since the buffer in C tracks what was written; data
    passed in at that moment may be lost.
    """

    def __init__(
        self, descriptor: int, on_loss: Callable[[OSError], None] | None = None, unbuffered: bool = False
    ) -> None:
        super().__init__()
        self._descriptor, self._on_loss, self._unbuffered = descriptor, on_loss, unbuffered
        self._file = open(descriptor, "wb", closefd=False)  # noqa: SIM115 - for as long as the process lives
        self.error: OSError | None = None  # The first error.
        self.lenient = False  # If so, data that cannot be written are dropped, without an error.

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        """Whether it is a terminal that still exists."""
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """Buffer data; return the number of bytes accepted, always all."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        while rest:
            try:
                # A closed file was dropped after an error; there may be room again.
                if self._file.closed:
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
        # A closed file was dropped after an error, with its data.
        while not self._file.closed:
            try:
                return self._file.flush()
            # Another process that shares the descriptor has made it non-blocking.
            except BlockingIOError:
                self._wait()
            except (OSError, ValueError) as exc:
                return self._record_error(exc)

    def _wait(self) -> None:
        with contextlib.suppress(OSError):
            select.select([], [self._descriptor], [])

    def _record_error(self, error: Exception) -> None:
        """Record an error; drop the data if the error is not raised."""
        if isinstance(error, OSError) and self.error is None:
            self.error = error
            if self._on_loss is not None:
                self._on_loss(error)
        if not self.lenient:
            raise error
        # Otherwise another thread has dropped the buffer.
        if isinstance(error, OSError):
            self._file.raw.close()


def watch_output(on_loss: Callable[[OSError], None] | None = None) -> None:
    """Write standard output and error through `OutputBuffer`; discard output of closed streams."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - for as long as the process lives
        elif stream is getattr(sys, f"__{name}__") and isinstance(stream, io.TextIOWrapper):
            stream.flush()
            lines = stream.line_buffering or name == "stderr"
            through = stream.write_through and on_loss is not None  # Commands write whole lines.
            buffer = OutputBuffer(stream.fileno(), on_loss, through)
            watched = io.TextIOWrapper(  # type: ignore[type-var]
                buffer, stream.encoding, stream.errors, line_buffering=lines, write_through=through
            )
            setattr(sys, name, watched)
            setattr(sys, f"__{name}__", watched)  # Scripts that redirect output restore it.


def lenient_output() -> None:
    """Ignore errors in writing output, also at the last flush: they change no exit status."""
    for stream in (sys.stdout, sys.stderr):
        buffer = _buffer_of(stream)
        if buffer is not None:
            buffer.lenient = True


def output_error() -> OSError | None:
    buffer = _buffer_of(sys.stdout)
    return None if buffer is None else buffer.error


def lost_output() -> str:
    """Return why output is missing; '' if none is missing or its reader has ended."""
    error = output_error()
    return "" if error is None or error.errno in _READER_HAS_GONE else error.strerror or str(error)


def _buffer_of(stream: Any) -> OutputBuffer | None:
    buffer = getattr(stream, "buffer", None)
    return buffer if isinstance(buffer, OutputBuffer) else None
