"""The seed of a run under ``platoon launch --deterministic``, and the generators it seeds."""

from __future__ import annotations

import os
from collections.abc import Mapping

from platoon_base.system.environment import DETERMINISTIC

__all__ = ["LIMITED_THREADS", "THREAD_VARIABLES", "deterministic_seed", "seed_generators", "threads_of"]

LIMITED_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
THREAD_VARIABLES = (*LIMITED_THREADS, "GOTO_NUM_THREADS", "BLIS_NUM_THREADS")

# Keeps this seed apart from those that a script draws from the job's seed.
_ROOT = 41


def deterministic_seed() -> int | None:
    """Return the common seed for generators without one; None unless runs must be reproducible."""
    text = os.environ.get(DETERMINISTIC)
    if not text:
        return None
    import numpy as np  # Workers start without NumPy.

    return int(np.random.SeedSequence([int(text), _ROOT]).generate_state(1)[0])


def threads_of(environment: Mapping[str, str]) -> str:
    """Return the thread variables that are set: they change the order, and the bits, of sums."""
    return " ".join(f"{name}={environment[name]}" for name in THREAD_VARIABLES if environment.get(name))


def seed_generators() -> None:
    """Seed the generators of Python and NumPy; frameworks follow when they are imported."""
    seed = deterministic_seed()
    if seed is not None:
        import random

        import numpy as np

        random.seed(seed)
        np.random.seed(seed)
