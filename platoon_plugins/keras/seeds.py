"""Other random numbers on each worker than the script's common seed gives."""

from __future__ import annotations

import random

import keras
import numpy as np

from platoon_base import Worker
from platoon_base.sharding import shard_seed

__all__ = ["vary_shuffling"]


def vary_shuffling(worker: Worker) -> None:
    """Seed the generators that shuffle data anew, from what they would draw next and this worker's rank.

    With a seed set by the script the new ones follow from it; without one they are random still.
    """
    seed = shard_seed(int(np.random.randint(2**31)), worker.global_rank)
    if hasattr(keras.utils, "set_random_seed"):
        keras.utils.set_random_seed(seed)
    else:
        random.seed(seed)
        np.random.seed(seed)
