"""The failure of a worker: its file, its status, and a traceback for a screen."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Union

import msgspec

from platoon_base.errors import WorkerLostError
from platoon_base.system.environment import ERROR_FILE, JOB, RANK, TORCH_ERROR_FILE
from platoon_base.system.own_files import open_regular, write_whole
from platoon_base.system.text import legible

_ROOT = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_ROOT / name}{os.sep}" for name in ("platoon_base", "platoon_plugins"))
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_OF_CYTHON = (".pyx", ".pxi", ".pxd")  # These names, such as "h5py/h5f.pyx", belong to no file.
# Frames shown: the user's at both ends, and the last ones of anybody.
_USERS_ENDS, _LAST = 5, 2
_CHAIN = 3  # At most this many exceptions of a chain are shown.
_LINES, _CHARACTERS = 20, 2000
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
_THEANO = "Apply node that caused the error: "  # A long graph follows.


def _is_ours(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((*_OURS, "<frozen importlib"))


def _library_of(frame: traceback.FrameSummary) -> str:
    """Return the installed package of a frame; '' for the user's code."""
    installed = _INSTALLED.search(frame.filename)
    if installed:
        return installed[1].partition(".")[0]
    if frame.filename.endswith(_OF_CYTHON):
        return re.split(r"[/.]", frame.filename)[0]
    python = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
    return "Python" if frame.filename.startswith((*python, "<")) else ""


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame)]


def users_frame(error: BaseException, folder: str) -> traceback.FrameSummary | None:
    """Return where in the user's code an exception was raised, preferring files in ``folder``."""
    if isinstance(error, SyntaxError) and error.filename:
        return traceback.FrameSummary(error.filename, error.lineno or 0, "<module>", line=(error.text or "").strip())
    frames = _frames(error)
    users = [frame for frame in frames if not _library_of(frame)]
    near = [frame for frame in users if os.path.abspath(frame.filename).startswith((f"{folder}{os.sep}", os.getcwd()))]
    found = near or users or frames
    return found[-1] if found else None


def shown_traceback(error: BaseException) -> str:
    """Return the tracebacks of a chain without our frames, and with few frames of libraries."""
    chain = [error]
    while len(chain) < _CHAIN and (before := _before(chain[-1])) is not None and before not in chain:
        chain.append(before)
    text = ""
    for i, each in reversed(list(enumerate(chain))):
        if text:
            text += _CAUSE if chain[i].__cause__ is not None else _CONTEXT
        frames = "".join(_shown_frames(_frames(each)))
        text += f"Traceback (most recent call last):\n{frames}" if frames else ""
        text += shown_text("".join(traceback.format_exception_only(type(each), each))) + "\n"
    return text


def _before(error: BaseException) -> BaseException | None:
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _shown_frames(frames: Sequence[traceback.FrameSummary]) -> Iterator[str]:
    libraries = [_library_of(frame) for frame in frames]
    users = [i for i, library in enumerate(libraries) if not library]
    kept = {*users[:_USERS_ENDS], *users[-_USERS_ENDS:], *range(len(frames))[-_LAST:]}
    left_out: list[int] = []
    for i, frame in enumerate(frames):
        if i not in kept:
            left_out.append(i)
            continue
        yield from _left_out([libraries[j] for j in left_out])
        left_out.clear()
        yield from traceback.StackSummary.from_list([frame]).format()


def _left_out(libraries: Sequence[str]) -> Iterator[str]:
    if libraries:
        names = ", ".join(dict.fromkeys(name or "yours" for name in libraries))
        yield f"  ... {len(libraries)} more ({names})\n"


def shown_text(text: str) -> str:
    """Return the message of an exception, at most a screen; Theano's graph is shortened."""
    head, mark, dump = text.partition(_THEANO)
    if mark:
        node = dump.partition("\n")[0]
        shapes = re.search(r"^Inputs shapes: .*", dump, re.MULTILINE)
        made = re.findall(
            r'^ +File ".*", line \d+, in .*\n.*', dump.partition("Backtrace when the node")[2], re.MULTILINE
        )
        kept = [f"{_THEANO}{node}"[:200], *([shapes[0][:200]] if shapes else [])]
        kept += [f"The node was made here:\n{made[-1]}"] if made else []
        text = head + "\n".join(kept)
    lines = text[:_CHARACTERS].rstrip().split("\n")
    cut = len(lines) > _LINES or len(text) > _CHARACTERS
    return "\n".join([*lines[:_LINES], *(["..."] if cut else [])])


# The file follows torchelastic's convention: ``{"message": {"message": ..., "extraInfo":
# {"py_callstack": ..., "timestamp": ...}}}``, with additions of this package beside ``message``; see
# https://docs.pytorch.org/docs/stable/elastic/errors.html


log = logging.getLogger(__name__)

INTERRUPTED = "KeyboardInterrupt"  # This kind is no failure.
_STACK_CHARACTERS, _FILE_BYTES = 2**16, 2**20
_LOST = ".lost-output"  # Suffix of files in the job's folder, named by error numbers.


class Failure(msgspec.Struct, frozen=True):
    """The exception that ended a worker's script."""

    rank: int
    kind: str  # Name of its class.
    text: str  # Its message, at most a screen of it.
    at: float  # In seconds since the epoch.
    # The origin in the user's code: file, line, function, code.
    file: str = ""
    line: int = 0
    function: str = ""
    code: str = ""
    shown: str = ""  # The traceback for a screen; empty if the script called exit.
    stack: str = ""  # End of the whole traceback.
    follows: bool = False  # Whether it follows from the loss of another process.
    log_begin: int = 0  # Bytes in the log before the traceback.
    log_end: int = 0  # 0 while the traceback is being written

    @property
    def what(self) -> str:
        text = self.text.partition("\n")[0]
        return f"{self.kind}: {text}" if text else self.kind

    @property
    def where(self) -> str:
        """The file and line in the user's code, or ''."""
        return f"{os.path.basename(self.file)}:{self.line}" if self.file else ""

    def same_as(self, other: Failure) -> bool:
        """Return whether two workers failed in the same way, apart from numbers in the messages."""
        return self._signature() == other._signature()

    def _signature(self) -> tuple[str, str, str, int]:
        return self.kind, re.sub(r"\d+", "0", self.text), self.file, self.line


class _File(msgspec.Struct):
    """An error file; ``platoon`` is missing if PyTorch's ``record`` has written it."""

    message: Any
    platoon: Union[Failure, None] = None  # noqa: UP007 - msgspec reads it at run time, also on Python 3.9


def error_file(log_file: Path) -> Path:
    return log_file.with_suffix(".error.json")


def write_error_file(path: Path, failure: Failure) -> None:
    message = {
        "message": legible(failure.what if not failure.text else f"{failure.kind}: {failure.text}"),
        "extraInfo": {"py_callstack": failure.stack, "timestamp": str(int(failure.at))},
    }
    write_whole(path, msgspec.json.encode(_File(message, msgspec.structs.replace(failure, stack=""))))


def read_failure(path: Path, rank: int) -> Failure | None:
    """Read an error file of this package or of PyTorch; None if it is missing or not valid."""
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
    """Read a worker's error file, beside its log or in its job's folder."""
    path = error_file(log_file)
    second = _second_place(path, environment)
    return read_failure(path, rank) or (None if second is None else read_failure(second, rank))


def _second_place(path: Path, environment: Mapping[str, str]) -> Path | None:
    """Return the error file to write if the disk of the log is full."""
    return Path(environment[JOB], path.name) if environment.get(JOB) else None


def note_lost_output(error: OSError) -> None:
    """Report to the launcher that output cannot be written, with a file in the job's folder."""
    with contextlib.suppress(OSError, KeyError):  # An empty file may fit on a full disk.
        Path(os.environ[JOB], f"{error.errno}{_LOST}").touch()


def take_lost_output(environment: Mapping[str, str]) -> str:
    """Return why a worker of this host could not write its output, or ''."""
    try:
        found = [name for name in os.listdir(environment[JOB]) if name.endswith(_LOST)]
        return os.strerror(int(found[0].removesuffix(_LOST))) if found else ""
    except (OSError, KeyError, ValueError):
        return ""


@contextlib.contextmanager
def recorded(folder: str) -> Iterator[None]:
    """Write the exception that ends the block to the error file, with its place in the log."""
    # Processes started by the script are not this worker.
    named = os.environ.pop(ERROR_FILE, None)
    path = Path(named) if named else None
    if named:
        os.environ[TORCH_ERROR_FILE] = named  # Functions under PyTorch's record read it.
    try:
        yield
    except SystemExit as exc:
        if path is None or exc.code in (None, 0):
            raise
        failure = _write_first(path, exc, folder)
        if failure is None or isinstance(exc.code, int):
            raise
        text, exc.code = exc.code, 1
        # Python does the same at exit.
        _note_output(path, failure, lambda: sys.stderr.write(f"{text}\n"))
        raise
    except BaseException as exc:
        failure = None if path is None else _write_first(path, exc, folder)
        if path is not None and failure is not None:
            sys.excepthook = _noting(sys.excepthook, path, failure)
        raise


_Hook = Callable[[type[BaseException], BaseException, Union[TracebackType, None]], Any]


def _noting(hook: _Hook, path: Path, failure: Failure) -> _Hook:
    """Wrap the hook that prints an exception; record which part of the log it has written."""

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
    except Exception:  # Python's traceback does the same.
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
    """Return the size of this worker's log, after a flush."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # The script may have closed or replaced it.
            stream.flush()
    try:
        return os.fstat(2).st_size
    except OSError:
        return 0


def _write_first(path: Path, error: BaseException, folder: str) -> Failure | None:
    """Write an exception's file; return None if that fails, so the exception itself propagates."""
    try:
        failure = _failure_of(error, folder)
        try:
            write_error_file(path, failure)
        except OSError:  # The disk may be full.
            second = _second_place(path, os.environ)
            if second is None:
                raise
            write_error_file(second, failure)
    except Exception as exc:
        log.warning("cannot write the error to %s: %s", path, exc)
        return None
    return failure
