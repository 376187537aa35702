"""The workers' warnings for the screen: each text once, with the workers that logged it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from platoon_base.cli.failures import name_workers
from platoon_base.cli.log_lines import NewLine

__all__ = ["WorkerWarnings"]

_HELD_S = 1.0  # delay to collect the same warning from others
_MAX_ALIKE = 5  # limit on texts of one worker that differ only in numbers
_MAX_KINDS = 1000
_AGAIN_CHARACTERS = 60


class _Warning:
    def __init__(self, text: str, source: int, now: float) -> None:
        self.text = text
        self.fresh = {source}
        self.shown: set[int] = set()
        self.since = now


class WorkerWarnings:
    """Collects warnings of workers; texts that differ only in numbers count as one."""

    def __init__(self, workers: int) -> None:
        self._workers = workers  # also the number of the data server's log
        self._texts: dict[tuple[int, str], list[str]] = {}  # keys: worker and common pattern
        self._warnings: dict[tuple[str, int], _Warning] = {}

    def take(self, line: NewLine, now: float) -> None:
        text = re.sub(rf"^rank {line.file}: ", "", line.text)
        kind = re.sub(r"\d+", "0", text)
        texts = self._texts.setdefault((line.file, kind), [])
        key = kind, len(texts)
        if text in texts or len(texts) == _MAX_ALIKE or (key not in self._warnings and self._is_full):
            return
        texts.append(text)
        known = self._warnings.get(key)
        if known is None:
            self._warnings[key] = _Warning(text, line.file, now)
            return
        known.since = known.since if known.fresh else now
        known.fresh.add(line.file)

    @property
    def _is_full(self) -> bool:
        return len(self._warnings) >= _MAX_KINDS

    def new(self, now: float, last: bool = False) -> Iterator[str]:
        """Yield a line for each warning whose delay is over; with ``last``, for all."""
        for warning in self._warnings.values():
            if not warning.fresh or not (
                last or now - warning.since >= _HELD_S or len(warning.fresh | warning.shown) >= self._workers
            ):
                continue
            again, names = bool(warning.shown), self._names(warning.fresh)
            warning.shown |= warning.fresh
            warning.fresh = set()
            text = f"{warning.text[:_AGAIN_CHARACTERS]}..." if again else warning.text
            yield f"WARNING, {names}{' too' if again else ''}: {text}"

    def _names(self, sources: set[int]) -> str:
        names = [name_workers(ranks)] if (ranks := [each for each in sources if each < self._workers]) else []
        return " and ".join(names + ["data server"] * (self._workers in sources))
