"""The table of a running job in a cell of a notebook, which is replaced in place."""

from __future__ import annotations

import sys
import time
from typing import Any

from platoon_base.cli.recent import Recent
from platoon_base.cli.table import table
from platoon_base.controller.outcome import Snapshot

__all__ = ["CellTable"]

_DRAW_S, _WIDTH, _HEIGHT = 1.0, 100, 40


class CellTable:
    """Shows snapshots in the running cell; does nothing outside of a notebook's kernel."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._display = _display_of_kernel()
        self._handle: Any = None
        self._recent = Recent()
        self._next = 0.0

    def show(self, snapshot: Snapshot) -> None:
        """Take a snapshot, and draw it unless one was drawn less than a second ago."""
        if self._display is None:
            return
        now = time.monotonic()
        self._recent.take(snapshot, now)
        if now >= self._next:
            self._next = now + _DRAW_S
            self.draw()

    def draw(self) -> None:
        if self._display is None or self._recent.snapshot is None:
            return
        shown = {"text/plain": "\n".join(table(self._recent, _WIDTH, _HEIGHT, self._title))}
        if self._handle is None:
            self._handle = self._display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def _display_of_kernel() -> Any:
    """Return IPython's function for rich output; None outside of a kernel."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython  # type: ignore[import-not-found,unused-ignore]
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]

    return display if hasattr(get_ipython(), "kernel") else None
