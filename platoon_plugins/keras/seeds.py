"""Random generators of Python and NumPy: different on each worker only during a fit."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from platoon_base import seeds
from platoon_base.frameworks import deterministic_seed
from platoon_base.seeds import Common as Common
from platoon_base.sharding import shard_seed

_ended: list[int] = [0]
# The common seed of all workers, once set.
_alike: list[int] = []


def state() -> Any:
    return random.getstate(), np.random.get_state()


def vary(rank: int) -> int:
    """Seed the generators from their next number and the rank; return the seed."""
    seed = shard_seed(int(np.random.randint(2**31)), rank)
    random.seed(seed)
    np.random.seed(seed)
    return seed


def of_epoch(epoch: int, rank: int) -> int | None:
    """Seed the generators for an epoch under ``--deterministic``; return the seed, else None."""
    # A fit that is resumed at this epoch then draws the same numbers.
    of_job = deterministic_seed()
    if of_job is None:
        return None
    seed = int(np.random.SeedSequence([of_job, fits(), epoch, rank]).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    return seed


def go_on(state: Any) -> None:
    """Set the generators one step after their state at the start of a fit."""
    # Splits between fits are then equal on all workers, and the next fit shuffles differently.
    restore(state)
    random.random()
    np.random.random_sample()
    _ended[0] += 1


def seed_alike(seed: int) -> None:
    """Seed Python, NumPy, torch and TensorFlow alike on all workers, for scripts without seeds."""
    number = seeds.seed_alike(seed)
    if "tensorflow" in sys.modules and sys.modules["tensorflow"].compat.v1.get_seed(None) == (None, None):
        sys.modules["tensorflow"].random.set_seed(number)
    _alike[:] = [number]


def seed_imported(module: Any) -> None:
    """Seed torch or TensorFlow, just imported, as `seed_alike` has seeded the others."""
    for number in _alike:
        module.manual_seed(number) if module.__name__ == "torch" else module.random.set_seed(number)


def fits() -> int:
    """Return how many fits of several workers this process has ended."""
    return _ended[0]


def restore(state: Any) -> None:
    python, numpy = state
    random.setstate(python)
    np.random.set_state(numpy)


@contextlib.contextmanager
def kept_numpy() -> Iterator[None]:
    before = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(before)
