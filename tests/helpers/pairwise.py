"""A full product of parameters, of which `make test` runs a part: one that has each pair of their values."""

from __future__ import annotations

import itertools

import pytest


def pairwise(names, *values):
    """Parametrize a test with all combinations of several lists of values; most are marked ``product``.

    Each pair of values of two parameters is in one of the combinations without the mark. They are chosen one by one,
    each the first of those with the most pairs that no chosen one has. The names are one text, with commas.
    """
    combinations = list(itertools.product(*(range(len(each)) for each in values)))
    missing = set().union(*map(_pairs, combinations))
    chosen = set()
    while missing:
        best = max(combinations, key=lambda each: len(_pairs(each) & missing))
        missing -= _pairs(best)
        chosen.add(best)
    cases = [
        pytest.param(
            *(each[at] for each, at in zip(values, combination)),
            marks=() if combination in chosen else pytest.mark.product,
        )
        for combination in combinations
    ]
    return pytest.mark.parametrize(names.split(","), cases)


def _pairs(combination):
    """Return the pairs of places and values in a combination; of a single parameter, its value."""
    placed = list(enumerate(combination))
    return set(itertools.combinations(placed, min(2, len(placed))))
