"""The LSTM of examples/lstm, and made-up reviews to time it with."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples" / "lstm"))

from lstm_network import CLASSES, UNITS, VOCABULARY, compile_step, parameters

__all__ = ["BATCH_SIZE", "UNITS", "VOCABULARY", "compile_step", "parameters", "reviews"]

BATCH_SIZE = 16
SHORTEST, LONGEST = 30, 99  # words in a review, drawn uniformly


def reviews(number, vocabulary=VOCABULARY, seed=0):
    """Make mini-batches of (words, mask, labels), each padded to its longest review, in a random order of their own."""
    rng = np.random.RandomState(seed)
    batches = []
    for _ in range(number):
        lengths = rng.randint(SHORTEST, LONGEST + 1, BATCH_SIZE)
        mask = (np.arange(lengths.max())[:, None] < lengths).astype("float32")
        words = rng.randint(0, vocabulary, mask.shape) * mask.astype("int64")
        batches.append((words, mask, rng.randint(0, CLASSES, BATCH_SIZE)))
    return batches
