"""The exception that ended a worker's script, in a file that the launcher reads while the worker still ends.

The file follows torchelastic's convention: ``{"message": {"message": ..., "extraInfo": {"py_callstack": ...,
"timestamp": ...}}}``. Additions of this package stand beside ``message``.

References
----------
PyTorch, "Error Propagation", https://docs.pytorch.org/docs/stable/elastic/errors.html
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Union

import msgspec

from platoon_base.errors import WorkerLostError
from platoon_base.system.environment import ERROR_FILE, JOB, RANK, TORCH_ERROR_FILE
from platoon_base.system.own_files import write_whole
from platoon_base.system.regular_files import open_regular
from platoon_base.system.text import legible
from platoon_base.worker_process.trimmed import shown_text, shown_traceback, users_frame

__all__ = [
    "INTERRUPTED",
    "Failure",
    "error_file",
    "find_failure",
    "note_lost_output",
    "read_failure",
    "recorded",
    "take_lost_output",
    "write_error_file",
]

log = logging.getLogger(__name__)

INTERRUPTED = "KeyboardInterrupt"  # the kind that is no failure
_STACK_CHARACTERS, _FILE_BYTES = 2**16, 2**20
_LOST = ".lost-output"  # Suffix of files in the job's folder, named by error numbers.


class Failure(msgspec.Struct, frozen=True):
    """The exception that ended a worker's script.

    Attributes
    ----------
    rank : int
    kind : str
        The name of its class.
    text : str
        Its message, at most a screen of it.
    at : float
        Seconds since the epoch.
    file, line, function, code : str, int, str, str
        Where it came from in the user's code; empty if nowhere.
    shown : str
        The traceback for a screen; empty if the script asked to exit.
    stack : str
        The whole traceback, at most so much of its end.
    follows : bool
        Whether it only says that another process of the job is gone.
    log_begin, log_end : int
        The part of the log, in bytes, that holds the traceback; an end of 0 if it is being written.
    """

    rank: int
    kind: str
    text: str
    at: float
    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""
    shown: str = ""
    stack: str = ""
    follows: bool = False
    log_begin: int = 0
    log_end: int = 0

    @property
    def what(self) -> str:
        """The exception in a line."""
        text = self.text.partition("\n")[0]
        return f"{self.kind}: {text}" if text else self.kind

    @property
    def where(self) -> str:
        """The user's line in a word; empty if there is none."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""

    def same_as(self, other: Failure) -> bool:
        """Return whether two workers failed in the same way: numbers in the messages, such as ranks, may differ."""
        return self._signature() == other._signature()

    def _signature(self) -> tuple[str, str, str, int]:
        return self.kind, re.sub(r"\d+", "0", self.text), self.file, self.line


class _File(msgspec.Struct):
    """An error file; ``platoon`` is missing if PyTorch's ``record`` has written it."""

    message: Any
    platoon: Union[Failure, None] = None  # noqa: UP007 - msgspec reads it at run time, and there is Python 3.9


def error_file(log_file: Path) -> Path:
    """Return the path of a worker's error file, beside its log."""
    return log_file.with_suffix(".error.json")


def write_error_file(path: Path, failure: Failure) -> None:
    """Write an error file at once as a whole."""
    message = {
        "message": legible(failure.what if not failure.text else f"{failure.kind}: {failure.text}"),
        "extraInfo": {"py_callstack": failure.stack, "timestamp": str(int(failure.at))},
    }
    write_whole(path, msgspec.json.encode(_File(message, msgspec.structs.replace(failure, stack=""))))


def read_failure(path: Path, rank: int) -> Failure | None:
    """Read an error file, of this package or of PyTorch; None if there is none, or it cannot be understood."""
    try:
        with open_regular(path) as file:
            found = msgspec.json.decode(file.read(_FILE_BYTES), type=_File)
            message = found.message
            text, extra = (message, {}) if isinstance(message, str) else (message["message"], message["extraInfo"])
            stack = str(extra.get("py_callstack", ""))[-_STACK_CHARACTERS:]
            if found.platoon is not None:
                return msgspec.structs.replace(found.platoon, stack=stack)
            kind, _, rest = str(text).partition(": ")
            at = float(extra.get("timestamp", os.fstat(file.fileno()).st_mtime))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, msgspec.MsgspecError):
        return None
    return Failure(rank, kind, shown_text(rest), at, shown=shown_text(stack), stack=stack)


def find_failure(log_file: Path, environment: Mapping[str, str], rank: int) -> Failure | None:
    """Read the error file of a worker: beside its log, or in the folder of its job if there was no room."""
    path = error_file(log_file)
    second = _second_place(path, environment)
    return read_failure(path, rank) or (None if second is None else read_failure(second, rank))


def _second_place(path: Path, environment: Mapping[str, str]) -> Path | None:
    """Return where an error file is written if it cannot be written beside the log, usually on another disk."""
    return Path(environment[JOB], path.name) if environment.get(JOB) else None


def note_lost_output(error: OSError) -> None:
    """Let the launcher know that this worker's output cannot be written: by a file in the job's folder."""
    with contextlib.suppress(OSError, KeyError):  # an empty file may find room where data does not
        Path(os.environ[JOB], f"{error.errno}{_LOST}").touch()


def take_lost_output(environment: Mapping[str, str]) -> str:
    """Return why a worker of this host could not write its output, if one has noted it; empty otherwise."""
    try:
        found = [name for name in os.listdir(environment[JOB]) if name.endswith(_LOST)]
        return os.strerror(int(found[0].removesuffix(_LOST))) if found else ""
    except (OSError, KeyError, ValueError):
        return ""


@contextlib.contextmanager
def recorded(folder: str) -> Iterator[None]:
    """Write the exception that ends the ``with`` block to this worker's error file, if it has one; it goes on.

    So that the launcher tells the traceback from the rest of the log, the file also says where
    in the log it is. Python writes it when the exception has come out of everything.

    Ctrl-C is written too, and is no failure: see `INTERRUPTED`.

    Parameters
    ----------
    folder : str
        That of the program, to find the user's line.
    """
    named = os.environ.pop(ERROR_FILE, None)  # processes that the script starts are not this worker
    path = Path(named) if named else None
    if named:
        os.environ[TORCH_ERROR_FILE] = named  # for functions under PyTorch's record
    try:
        yield
    except SystemExit as exc:
        if path is None or exc.code in (None, 0):
            raise
        failure = _write_first(path, exc, folder)
        if failure is None or isinstance(exc.code, int):
            raise
        text, exc.code = exc.code, 1
        _note_output(path, failure, lambda: sys.stderr.write(f"{text}\n"))  # as Python does at the end
        raise
    except BaseException as exc:
        failure = None if path is None else _write_first(path, exc, folder)
        if path is not None and failure is not None:
            sys.excepthook = _noting(sys.excepthook, path, failure)
        raise


_Hook = Callable[[type[BaseException], BaseException, Union[TracebackType, None]], Any]


def _noting(hook: _Hook, path: Path, failure: Failure) -> _Hook:
    """Return the hook that prints an exception, with a note of where in the log it has printed it."""

    def print_and_note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _note_output(path, failure, lambda: hook(kind, error, trace))

    return print_and_note


def _note_output(path: Path, failure: Failure, write: Callable[[], object]) -> None:
    begin = _log_bytes()
    write()
    with contextlib.suppress(OSError):
        write_error_file(path, msgspec.structs.replace(failure, log_begin=begin, log_end=max(1, _log_bytes())))


def _failure_of(error: BaseException, folder: str) -> Failure:
    exits = isinstance(error, SystemExit)
    frame = users_frame(error, folder)
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_STACK_CHARACTERS:]
    try:
        text = str(error)
    except Exception:  # as Python's traceback does
        text = "<exception str() failed>"
    failure = Failure(
        int(os.environ.get(RANK, "0")),
        type(error).__name__,
        legible(shown_text(text)),
        time.time(),
        shown="" if exits else legible(shown_traceback(error)),
        stack=legible(stack),
        follows=isinstance(error, WorkerLostError),
        log_begin=_log_bytes(),
    )
    if frame is None:
        return failure
    file, function, code = (legible(each) for each in (frame.filename, frame.name, frame.line or ""))
    return msgspec.structs.replace(failure, file=file, line=frame.lineno or 0, function=function, code=code)


def _log_bytes() -> int:
    """Return the size of this worker's log, with what Python has not written yet."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the script may have closed or replaced it
            stream.flush()
    try:
        return os.fstat(2).st_size
    except OSError:
        return 0


def _write_first(path: Path, error: BaseException, folder: str) -> Failure | None:
    """Write an exception's file; None if that fails, for the exception itself matters more."""
    try:
        failure = _failure_of(error, folder)
        try:
            write_error_file(path, failure)
        except OSError:  # the disk is full, for instance
            second = _second_place(path, os.environ)
            if second is None:
                raise
            write_error_file(second, failure)
    except Exception as exc:
        log.warning("the error cannot be written to %s: %s", path, exc)
        return None
    return failure
