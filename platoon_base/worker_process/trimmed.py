"""A traceback for a screen: the user's frames and the last ones of libraries. The log has all."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["shown_text", "shown_traceback", "users_frame"]

_ROOT = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_ROOT / name}{os.sep}" for name in ("platoon_base", "platoon_plugins"))
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\]+)")
_OF_CYTHON = (".pyx", ".pxi", ".pxd")  # names without files, as "h5py/h5f.pyx"
# Frames shown: the user's at both ends, and the last ones of anybody.
_USERS_ENDS, _LAST = 5, 2
_CHAIN = 3  # exceptions of a chain
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
