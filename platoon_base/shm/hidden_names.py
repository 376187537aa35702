"""Unpredictable names of shared memory, found through links in the job's private folder.

All users see the names in /dev/shm: another user could create a predictable name first.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["HiddenName"]

_RANDOM_BYTES = 8


class HiddenName:
    """Name of a segment, stored in a link in a folder that only this user can enter."""

    def __init__(self, link: Path, prefix: str) -> None:
        self._link = link
        self._prefix = prefix

    def __str__(self) -> str:
        return self.current() or self._prefix

    def current(self) -> str:
        """Return the name of the segment; empty while there is none."""
        try:
            return os.readlink(self._link)
        except OSError:
            return ""

    def fresh(self) -> str:
        return f"{self._prefix}-{os.urandom(_RANDOM_BYTES).hex()}"

    def point_to(self, name: str) -> None:
        unfinished = self._link.with_name(f"{self._link.name}.{os.urandom(_RANDOM_BYTES).hex()}")
        os.symlink(name, unfinished)
        os.replace(unfinished, self._link)

    def forget(self) -> None:
        with contextlib.suppress(OSError):  # There is no link.
            self._link.unlink()
