"""Descriptors with locks of this process only: forked children do not keep them open.

The kernel releases a lock (``flock``, ``F_OFD_SETLK``) once the last descriptor of its open file is
closed. A forked child has copies of all descriptors, and would keep the locks of a killed parent.
"""

from __future__ import annotations

import contextlib
import os

__all__ = ["disown", "own"]

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
            if os.path.samestat(os.fstat(fd), status):  # not reused for another file
                os.dup2(empty if twin is None else twin, fd, inheritable=False)
    os.close(empty)
    _owned.clear()
