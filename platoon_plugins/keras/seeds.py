"""Random generators of Python and NumPy: different on each worker during a fit, equal on all before and after it."""

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
    """Return the states of the generators of Python and NumPy."""
    return random.getstate(), np.random.get_state()


def vary(rank: int) -> int:
    """Seed the generators from their next number and the rank; return the seed.

    If the script has set a seed, the new one is determined by it; otherwise it is random.
    """
    seed = shard_seed(int(np.random.randint(2**31)), rank)
    random.seed(seed)
    np.random.seed(seed)
    return seed


def go_on(state: Any) -> None:
    """Set the generators one step after their state at the start of a fit, the same on all workers.

    So random splits between two fits are equal on all workers, and a second fit shuffles differently.
    """
    restore(state)
    random.random()
    np.random.random_sample()
    _ended[0] += 1


def fits() -> int:
    """Return how many fits of several workers this process has ended."""
    return _ended[0]


def restore(state: Any) -> None:
    """Set the generators to earlier states."""
    python, numpy = state
    random.setstate(python)
    np.random.set_state(numpy)


@contextlib.contextmanager
def common(seed: Sequence[int]) -> Iterator[None]:
    """Seed the generators within the ``with`` block, and restore their states afterwards.

    Keras reads training and validation data in separate threads, which enter the block one at a time.
    """
    with _one_at_a_time:
        before = state()
        random.seed(str(seed))
        np.random.seed(np.random.SeedSequence(seed).generate_state(4))
        try:
            yield
        finally:
            restore(before)
