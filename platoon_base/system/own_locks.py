"""Descriptors that hold locks of this process only: a forked child does not keep them open.

The kernel frees a lock of an open file description (``flock``, ``F_OFD_SETLK``) once the last descriptor of it is
closed. A child that was forked has copies of all descriptors, so it would keep the locks of a parent that was killed.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["disown", "own"]

_owned: dict[int, tuple[os.stat_result, int | None]] = {}
_registered = False


def own(fd: int, twin: int | None = None) -> None:
    """Replace a descriptor in children that Python forks; call `disown` before closing it.

    Parameters
    ----------
    fd : int
    twin : int, optional
        A descriptor of the same file, opened by itself, which takes its place there. Left out, an empty file does.
    """
    global _registered
    _owned[fd] = os.fstat(fd), twin
    if not _registered and hasattr(os, "register_at_fork"):
        _registered = True
        os.register_at_fork(after_in_child=_replace_all)


def disown(fd: int) -> None:
    """Stop replacing a descriptor in forked children."""
    _owned.pop(fd, None)


def _replace_all() -> None:
    """Replace, in a child: code that still has the numbers must not close or change another file by them."""
    if not _owned:
        return
    empty = os.memfd_create("platoon") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
    for fd, (status, twin) in _owned.items():
        with contextlib.suppress(OSError):  # it is closed
            if os.path.samestat(os.fstat(fd), status):  # and not another file's number by now
                os.dup2(empty if twin is None else twin, fd, inheritable=False)
    os.close(empty)
    _owned.clear()
