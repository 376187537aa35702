"""The rhythm of backward passes and steps in a loop that accumulates gradients."""

from __future__ import annotations


class Rhythm:
    """How many backward passes a loop accumulates for a step, known from two equal steps."""

    def __init__(self) -> None:
        self.varies = False  # Closures need averages of each pass.
        self._passes, self._latest = 0, (0, 1)

    def more_come(self) -> bool:
        """Count a backward pass; return whether others are to come before the step."""
        self._passes += 1
        before, latest = self._latest
        return before == latest and self._passes < latest and not self.varies

    def steps(self, rest: bool) -> None:
        """Process a step, with the ``rest`` of a pass over the loader or not."""
        if not rest:
            self._latest = self._latest[1], self._passes
        self._passes = 0
