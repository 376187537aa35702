"""What the tests of values that are not finite and their script have in common: a model, and how it is poisoned."""

import itertools
import math

# The model. "W" is read in place; "b" is copied out and back, as from a device.
SHAPES = {"W": (31, 40), "b": (7,), "s": ()}
HUGE = (0, 5)  # parameter and element that the center has at -0.9 times the largest number: +0.9 times would overflow
POISONS = {
    "nan": {(0, 1233): math.nan},
    "infinity": {(1, 4): -math.inf},
    "overflow": {HUGE: 0.9},  # times the largest number
    "a scalar": {(2, 0): math.inf},
    "several": {(1, 0): math.nan, (1, 6): math.inf, HUGE: 0.9, (0, 1239): math.nan},
}
DTYPES = ["float32", "float64", "float16"]
ROUNDS = list(itertools.product(DTYPES, POISONS, [True, False]))
TURNS = [0, 1, 0, 0, 1]  # who synchronizes; the first time with the poison, the fourth time without
