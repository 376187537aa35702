"""Training that a test makes by itself, and its script on the only worker of a job."""

import numpy as np


def train(begin=lambda w: None, after_step=lambda step: None):
    """Make 200 steps of 0.01 on the loss w^2, from w = 10 and small values."""
    w = np.full(1000, 10.0, "float32")
    w[1::2] = 1e-3
    begin(w)
    for step in range(200):
        w -= np.float32(0.02) * w
        after_step(step)
    return w
