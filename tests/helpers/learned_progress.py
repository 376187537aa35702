"""The progress that workers make in tests of rules, which the test and its scripts compute alike."""

import numpy as np

# Two stripes, many blocks: the first goes through C, the second through NumPy, as it has several dtypes.
SHAPES = [((37, 11), "float32"), ((600_000,), "float32"), ((5,), "float64"), ((3,), "float16")]


def progress(rank, step, shape, dtype):
    """Return what a worker learns in a step, whichever process computes it."""
    rng = np.random.default_rng([rank, step, shape[0]])
    return (0.1 * rng.standard_normal(shape)).astype(dtype)
