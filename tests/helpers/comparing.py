"""Comparisons of lists of arrays, one by one."""

import numpy as np


def require_equal(found, wanted):
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        np.testing.assert_array_equal(got, want)


def require_close(found, wanted, **tolerance):
    assert len(found) == len(wanted)
    for got, want in zip(found, wanted):
        np.testing.assert_allclose(got, want, **tolerance)
