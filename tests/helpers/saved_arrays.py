"""Reads the arrays that the workers of a test have saved."""

import numpy as np

__all__ = ["load"]


def load(path):
    """Return the arrays of an npz file by name."""
    with np.load(path) as file:
        return dict(file)
