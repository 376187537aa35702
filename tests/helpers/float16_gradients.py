"""Gradients whose sum in float16 loses values, for a test and for its script."""

import numpy as np


def gradients(rank, step):
    rng = np.random.RandomState(100 * step + rank)
    # Constant values, that another worker's would swallow in a float16 sum; and noise of all sizes.
    constant = np.linspace(0.1, 1, 70) * (1e-4 if rank else 1)
    noise = rng.randn(70) * 10.0 ** rng.randint(-6, 6, 70)
    return [np.stack([constant, noise]).astype("f4"), np.float32(1e30 * (1 + rank))]
