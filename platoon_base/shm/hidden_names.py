"""Names of shared memory that other users cannot know before the memory is there.

All users see the names in /dev/shm. If a job's next names could be predicted, another user could take them first. So
each name ends with random digits. The job finds it by a link in its folder, which only its user can enter.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["HiddenName"]

_RANDOM_BYTES = 8


class HiddenName:
    """The name of a segment, by the link that holds it.

    Parameters
    ----------
    link : Path
        In a folder that only this user can enter.
    prefix : str
        What the segment's name begins with, with its leading slash.
    """

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
        """Return a name that cannot be predicted."""
        return f"{self._prefix}-{os.urandom(_RANDOM_BYTES).hex()}"

    def point_to(self, name: str) -> None:
        """Store the name of a segment."""
        unfinished = self._link.with_name(f"{self._link.name}.{os.urandom(_RANDOM_BYTES).hex()}")
        os.symlink(name, unfinished)
        os.replace(unfinished, self._link)

    def forget(self) -> None:
        """Remove the stored name."""
        with contextlib.suppress(OSError):  # there is none
            self._link.unlink()
