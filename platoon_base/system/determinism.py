"""The seed of a run under ``platoon launch --deterministic``, and the generators that it seeds."""

from __future__ import annotations

import os
from collections.abc import Mapping

from platoon_base.system.environment import DETERMINISTIC

__all__ = ["LIMITED_THREADS", "THREAD_VARIABLES", "deterministic_seed", "seed_generators", "threads_of"]

LIMITED_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
THREAD_VARIABLES = (*LIMITED_THREADS, "GOTO_NUM_THREADS", "BLIS_NUM_THREADS")

_ROOT = 41  # besides the job's seed, so that no seed that a script draws from that one is the same


def deterministic_seed() -> int | None:
    """Return the seed for generators without one, the same on all workers; None unless runs are to be the same."""
    text = os.environ.get(DETERMINISTIC)
    if not text:
        return None
    import numpy as np  # here: a worker starts without it

    return int(np.random.SeedSequence([int(text), _ROOT]).generate_state(1)[0])


def threads_of(environment: Mapping[str, str]) -> str:
    """Return the variables that set the number of threads of libraries, such as ``"OMP_NUM_THREADS=2"``.

    With another number sums are added in another order, and have other bits.
    """
    return " ".join(f"{name}={environment[name]}" for name in THREAD_VARIABLES if environment.get(name))


def seed_generators() -> None:
    """Seed the generators of Python and NumPy, before a script that may not; frameworks follow when imported."""
    seed = deterministic_seed()
    if seed is not None:
        import random

        import numpy as np

        random.seed(seed)
        np.random.seed(seed)
