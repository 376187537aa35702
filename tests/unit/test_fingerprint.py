"""Fingerprints: equal for equal data in every process, different for other data, and cheap for large ones."""

import mmap
import resource
import sys
from itertools import combinations

import numpy as np
import pytest
from programs import run_python

from platoon_base.fingerprint import checksum, fingerprint

pytestmark = pytest.mark.base

ROWS = np.arange(1200.0).reshape(300, 4)
LARGE = np.arange(3 * 10**6, dtype=np.int32).reshape(3, 1000, 1000)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ROWS.copy(),
        lambda: [ROWS[:, 0].copy(), {"b": ROWS[:, 1].astype("int8"), "a": None}],
        lambda: np.array(["x", None, {3: b"bytes"}], dtype=object),
        lambda: np.array(7.5),
        lambda: np.ones((2, 20000)).view(np.matrix),
        lambda: ["text", 3, 2.5, True, float("nan"), (), object()],
        lambda: LARGE.copy(),
    ],
)
def test_equal_data_have_equal_fingerprints(make):
    assert fingerprint(make()) == fingerprint(make())


def test_other_data_have_other_fingerprints():
    """Other shapes, types, nesting, order of rows, and values wherever a random split would change them."""
    first_row_changed = ROWS.copy()
    first_row_changed[0, 3] = -1
    objects = np.array([str(i) for i in range(300)], dtype=object)
    large = LARGE.copy()
    large[1, 0, 0] += 1
    data = [
        (ROWS,), (ROWS, None), (ROWS, ROWS), ([ROWS, ROWS],), ((ROWS.tolist()),), (ROWS.astype("float32"),),
        (ROWS[:-1],), (ROWS.reshape(600, 2),), (ROWS[::-1],), (np.random.RandomState(0).permutation(ROWS),),
        (np.random.RandomState(1).permutation(ROWS),), (first_row_changed,), (ROWS[:, 0],), ({"a": ROWS},),
        ({"b": ROWS},), (objects,), (objects[::-1],), (objects.tolist(),), (LARGE,), (LARGE[::-1],), (large,),
        (LARGE.ravel(),), (LARGE.ravel()[::-1],), (3,), (3.0,), ("3",), (np.int8(3),), (np.array(3),), (None,), (),
    ]  # fmt: skip
    for a, b in combinations(data, 2):
        assert fingerprint(*a) != fingerprint(*b)


def test_other_processes_compute_the_same():
    """Under another seed for hashes of strings, and at other addresses."""
    code = (
        "from platoon_base.fingerprint import fingerprint; import numpy as np;"
        "print(fingerprint(np.arange(9.0), {'b': ['x', object()], 'a': {1, 2}}))"
    )
    found = [
        run_python("-c", code, env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}).stdout for seed in "12"
    ]
    assert found[0] == found[1]
    assert len(found[0].strip()) == 16


def test_of_a_large_file_little_is_read(tmp_path):
    """100 GB in a sparse file, as no machine would read in the time of a test."""
    file = tmp_path / "large"
    with open(file, "wb") as opened:
        opened.truncate(10**11)
    rows = np.memmap(file, np.uint8, "r", shape=(10**5, 1000, 1000))
    assert fingerprint(rows) == fingerprint(rows)


def faults():
    """Return how many pages this process has asked its system for."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_minflt + used.ru_majflt


@pytest.mark.parametrize("shape", [(10**11,), (1000, 10**8)])
def test_of_long_rows_single_places_are_read(tmp_path, shape):
    """Of pages, that is: in a file whose system reads none ahead, each of them is a wait for the disk."""
    file = tmp_path / "large"
    with open(file, "wb+") as opened:
        opened.truncate(10**11)
        memory = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    memory.madvise(mmap.MADV_RANDOM)
    rows = np.frombuffer(memory, np.uint8).reshape(shape)
    before = faults()
    fingerprint(rows)
    assert faults() - before < 2500


def test_arrays_of_other_packages_are_read_row_by_row():
    class Stored:
        """An array in a file, such as h5py has them."""

        shape, dtype, read = (1000, 4), np.dtype("float64"), 0

        def __init__(self, values):
            self._values = values

        def __getitem__(self, index):
            Stored.read += 1
            return self._values[index]

    rows = np.random.RandomState(0).randn(1000, 4)
    assert fingerprint(Stored(rows)) != fingerprint(Stored(rows[::-1]))
    assert Stored.read <= 128


def test_a_checksum_tells_of_any_change_and_not_of_the_order_in_memory():
    changed = LARGE.copy()
    changed[2, 999, 999] ^= 1
    assert checksum(changed) != checksum(LARGE)
    assert checksum(np.asfortranarray(LARGE)) == checksum(LARGE)
