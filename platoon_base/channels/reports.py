"""Reported values on the worker's side: frequent ones are sent periodically, the latest only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from platoon_base.errors import CollectiveTimeoutError, PlatoonError, WorkerLostError

EVERY_S = 1.0  # The screen is updated once a second.

Values = Mapping[str, "float | str"]


class Reports:
    """Sends values immediately, unless their names were sent just before: then the latest soon.

    A message costs the worker and the controller 0.1 ms each: a hundred reports a second would take
    some percent of a core. There is no thread: the owner must call `flush` before each other
    message and at the end, and `flush_if_due` regularly. ``send(values, timeout_s)`` waits for the
    answer. Values of one name are sent every ``every_s``; 0 sends all. ``pending`` values are not
    sent yet.
    """

    def __init__(self, send: Callable[[Values, float], object], every_s: float = EVERY_S) -> None:
        self._send = send
        self._every_s = every_s
        self._next: dict[str, float] = {}
        self.pending: dict[str, float | str] = {}
        self._due = 0.0

    def add(self, values: Values, timeout_s: float) -> None:
        now = time.monotonic()
        if values and all(now < self._next.get(name, 0.0) for name in values):
            if not self.pending:
                self._due = now + self._every_s
            self.pending.update(values)
        else:
            self._send_all(values, timeout_s)

    def flush_if_due(self, timeout_s: float) -> None:
        if self.pending and time.monotonic() >= self._due:
            self._send_all({}, timeout_s)

    def flush(self, timeout_s: float) -> None:
        if self.pending:
            self._send_all({}, timeout_s)

    def _send_all(self, values: Values, timeout_s: float) -> None:
        # A signal handler may report here: values that it adds to either dict are sent, at worst
        # twice.
        kept, self.pending = self.pending, {}
        together = {**kept, **values}
        try:
            self._send(together, timeout_s)
        except BaseException as exc:
            refused = isinstance(exc, PlatoonError) and not isinstance(exc, (WorkerLostError, CollectiveTimeoutError))
            if values or not refused:
                self.pending = {**kept, **self.pending}  # These values were not refused.
            raise  # Values that are refused alone would be refused before each later message too.
        now = time.monotonic()
        self._next.update(dict.fromkeys(together, now + self._every_s))
