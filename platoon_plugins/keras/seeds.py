"""Random numbers of Python and NumPy: different on each worker during a fit, the same on all before and after it."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from platoon_base.sharding import shard_seed

__all__ = ["common", "fits", "go_on", "restore", "state", "vary"]

_one_at_a_time = threading.Lock()
_ended: list[int] = [0]


def state() -> Any:
    """Return where the generators of Python and NumPy stand."""
    return random.getstate(), np.random.get_state()


def vary(rank: int) -> int:
    """Seed them by what they would draw next and the rank, and return that seed.

    With a seed set by the script the new one follows from it; without one it is random still.
    """
    seed = shard_seed(int(np.random.randint(2**31)), rank)
    random.seed(seed)
    np.random.seed(seed)
    return seed


def go_on(state: Any) -> None:
    """Set them one step after their state at the begin of a fit, the same on all workers.

    So splits that a script draws between two fits are the same everywhere, and a second fit shuffles otherwise.
    """
    restore(state)
    random.random()
    np.random.random_sample()
    _ended[0] += 1


def fits() -> int:
    """Return how many fits of several workers this process has ended."""
    return _ended[0]


def restore(state: Any) -> None:
    """Let them go on where they stood."""
    python, numpy = state
    random.setstate(python)
    np.random.set_state(numpy)


@contextlib.contextmanager
def common(seed: Sequence[int]) -> Iterator[None]:
    """Within the ``with`` block they follow from a seed; afterwards they go on where they stood.

    Keras reads training and validation data in threads of their own, which enter one after the other.
    """
    with _one_at_a_time:
        before = state()
        random.seed(str(seed))
        np.random.seed(np.random.SeedSequence(seed).generate_state(4))
        try:
            yield
        finally:
            restore(before)
