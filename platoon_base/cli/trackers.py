"""The options of `platoon launch` that write or serve what a job does, in order of its help."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from platoon_base.cli import metrics_port, run_report, tensorboard, trace_file
from platoon_base.cli.observers import Observed, Observer

__all__ = ["tracker_options"]

TRACKERS = (tensorboard.TRACKER, run_report.TRACKER, trace_file.TRACKER, metrics_port.TRACKER)


def tracker_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command; its argument ``trackers`` makes the observers of a job."""

    @functools.wraps(command)
    def with_trackers(*args: Any, **kwargs: Any) -> Any:
        given = [(tracker, kwargs.pop(tracker.parameter)) for tracker in TRACKERS]

        def make(job: Observed) -> list[Observer]:
            return [tracker.make(value, job) for tracker, value in given if value is not None]

        return command(*args, trackers=make, **kwargs)

    wrapped: Callable[..., Any] = with_trackers
    for tracker in reversed(TRACKERS):
        wrapped = tracker.option(wrapped)
    return wrapped
