"""What one worker does for all: print, and write a file."""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable
from typing import Any

from platoon_base.job.place import is_main

__all__ = ["print", "write_once"]


def print(*values: Any, **options: Any) -> None:
    """Print on one worker, the one of `is_main`."""
    if is_main():
        builtins.print(*values, **options)


def write_once(path: str | os.PathLike[str], write: Callable[[str], object]) -> None:
    """Call ``write(part)`` on one worker, then rename the file; readers see all of it or none."""
    if is_main():
        part = f"{os.fspath(path)}.{os.getpid()}.part"
        try:
            write(part)
            os.replace(part, path)
        finally:
            if os.path.exists(part):
                os.remove(part)
