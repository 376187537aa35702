"""Other random numbers on each worker, for the length of a fit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from platoon_base.sharding import shard_seed

__all__ = ["restore", "state", "vary"]


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


def restore(state: Any) -> None:
    """Let them go on where they stood: scripts that draw splits of their data between two fits draw the same."""
    python, numpy = state
    random.setstate(python)
    np.random.set_state(numpy)
