"""Batches at the ends of things: of a loop, of the data, of a server, of the room for messages."""

import itertools

import numpy as np
import pytest

from platoon_base.data import load_ahead
from platoon_base.errors import WorkerLostError

pytestmark = pytest.mark.base


def test_a_loop_that_is_over_stays_over():
    batches = iter(load_ahead([np.full(1, number) for number in range(3)]))
    chunks = []
    while chunk := list(itertools.islice(batches, 2)):
        chunks.append([int(x[0]) for x in chunk])
    assert chunks == [[0, 1], [2]]
    assert list(batches) == []


def test_a_loop_that_was_closed_or_has_failed_is_over():
    closed = iter(load_ahead([np.zeros(1)] * 3))
    next(closed)
    closed.close()
    assert list(closed) == []
    failed = iter(load_ahead(lambda: [1 // 0]))
    with pytest.raises(WorkerLostError, match="ZeroDivisionError"):
        next(failed)
    assert list(failed) == []
