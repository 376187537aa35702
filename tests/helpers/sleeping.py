"""Sleeps in a phase, and the sum of what a script has slept in each, beside what the worker's clock says."""

import time

from platoon_base import connect

_worker = connect()
_slept = dict.fromkeys(("loading", "compute", "validation"), 0.0)


def sleep(name, seconds):
    began = time.perf_counter()
    time.sleep(seconds)
    if _worker.advanced.clock.seconds["compute"]:  # it counts from the first step on
        _slept[name] += time.perf_counter() - began


def report():
    """Report the clock's seconds and those that were slept, by phase and rank."""
    rank = _worker.global_rank
    _worker.report({f"{name}{rank}": seconds for name, seconds in _worker.advanced.clock.seconds.items()})
    _worker.report({f"slept {name}{rank}": seconds for name, seconds in _slept.items()})
