"""Checksums of variables: the same in C and NumPy, and different after any change."""

import numpy as np
import pytest
from plain_variable import Variable

from platoon_base.worker import checksums


def _values():
    rng = np.random.default_rng(3)
    sizes = (0, 1, 3, 5, 100, 16384, 16385, 40001)
    return [rng.integers(0, 255, n).astype(t) for n in sizes for t in ("f4", "f8", "f2", "i8", "u1", "?")]


def test_c_and_numpy_give_the_same_checksums(monkeypatch):
    variables = [Variable("w", value) for value in _values()]
    compiled = checksums(variables)
    monkeypatch.setattr("platoon_base.worker.agreed_state.EXTENSION", None)
    assert checksums(variables) == compiled


def test_a_checksum_by_hand():
    place, first, second = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
    total = 0
    for index, word in enumerate((7, 0x010203, 5)):  # The second value of three bytes' worth is padded.
        hashed = (word + index * place) * first % 2**64
        total += (hashed ^ hashed >> 32) * second
    total %= 2**64
    value = np.array([7, 0x010203, 5], "<u4")
    assert checksums([Variable("w", value)]) == [(total ^ total >> 32) % 2**32]


@pytest.mark.parametrize("dtype", ["f4", "f2", "u1"])
def test_each_change_of_an_element_changes_the_checksum(dtype):
    value = np.random.default_rng(5).integers(0, 200, 1001).astype(dtype)
    found = {checksums([Variable("w", value)])[0]}
    for index in range(value.size):
        changed = value.copy()
        changed[index] += 1
        found.add(checksums([Variable("w", changed)])[0])
    swapped = value.copy()
    swapped[[3, 900]] = value[[900, 3]] + np.array([1, 0], dtype)
    found.add(checksums([Variable("w", swapped)])[0])
    assert len(found) == value.size + 2


def test_memory_order_does_not_count():
    value = np.arange(12.0).reshape(3, 4)
    assert checksums([Variable("w", np.asfortranarray(value))]) == checksums([Variable("w", value)])
