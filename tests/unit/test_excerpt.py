"""Excerpts of rows by their numbers, against NumPy's: in C, and in NumPy where there is no C."""

import sys
import threading

import numpy as np
import pytest

from platoon_base.data import excerpt
from platoon_base.data import excerpt as package_name
from platoon_base.data.excerpt import HAVE_FUSED, copy_to, part_of, row_numbers
from platoon_base.errors import ConfigurationError, RowIndexError

pytestmark = pytest.mark.base

ROWS = np.arange(7 * 6, dtype=np.float32).reshape(7, 2, 3)


@pytest.fixture(params=["C", "NumPy"], autouse=True)
def each_form(request, monkeypatch):
    """Run each test in both forms."""
    if request.param == "NumPy":
        monkeypatch.setitem(package_name.__globals__, "_excerpt", None)
    elif not HAVE_FUSED:
        pytest.skip("needs the C extension: python setup.py build_ext --inplace")


@pytest.mark.parametrize(
    "indices",
    [
        [5, 0, 0, 6], [-1, -7, 3], [], range(7), np.array([3, 1], np.uint8), np.array([2**40 - 2**40 + 4]),
        slice(1, None, 2), slice(None, None, -1), slice(9, 12), np.arange(7) % 2 == 0, np.arange(14)[::3] % 7,
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_those_that_numpy_takes(indices, threads):
    wanted = ROWS[indices if isinstance(indices, slice) else np.array(indices, None if len(indices) else int)]
    found = excerpt(ROWS, indices, threads=threads)
    np.testing.assert_array_equal(found, wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)


@pytest.mark.parametrize("dtype", ["i1", ">f8", "c16", "S5", "M8[s]"])
@pytest.mark.parametrize("row_shape", [(), (1,), (3, 0), (5, 7)])
def test_any_dtype_and_shape(dtype, row_shape):
    rows = np.arange(11 * int(np.prod(row_shape))).reshape(11, *row_shape).astype("i8").astype(dtype)
    indices = np.random.default_rng(1).integers(-11, 11, 50)
    np.testing.assert_array_equal(excerpt(rows, indices), rows[indices])


@pytest.mark.parametrize(
    ("row_bytes", "count", "threads"),
    [
        (300_007, 31, 1),
        (300_007, 60, 3),
        (16_390, 1100, 3),
        (7, 2_500_000, 1),
        (7, 2_500_000, 3),
        (1 << 14, 1024, 1000),
    ],
)
def test_many_bytes_on_several_threads(row_bytes, count, threads):
    """All but the first are written past the cache."""
    rows = np.random.default_rng(2).integers(0, 255, (50, row_bytes), np.uint8)
    indices = np.random.default_rng(3).integers(-50, 50, count)
    room = np.empty(count * row_bytes + 3, np.uint8)
    out = room[3:].reshape(count, row_bytes)  # lines of the cache begin elsewhere
    assert excerpt(rows, indices, out, threads=threads) is out
    np.testing.assert_array_equal(out, rows[indices])


@pytest.mark.parametrize("wrong", [7, -8, 2**40, -(2**62)])
def test_an_index_out_of_range_names_itself_and_changes_nothing(wrong):
    out = np.full((3, 2, 3), 5, np.float32)
    with pytest.raises(RowIndexError, match=rf"got index {wrong} at position 1 .*7 rows.* -7 to 6"):
        excerpt(ROWS, [1, wrong, 9], out)
    assert (out == 5).all()
    assert issubclass(RowIndexError, IndexError)


def test_an_unsigned_index_does_not_wrap():
    with pytest.raises(RowIndexError, match="got index 18446744073709551615 at position 0"):
        excerpt(ROWS, np.array([2**64 - 1], np.uint64))
    with pytest.raises(RowIndexError, match="with 0 rows"):
        excerpt(ROWS[:0], [0])
    assert excerpt(ROWS[:0], []).shape == (0, 2, 3)


@pytest.mark.parametrize(
    ("rows", "indices", "out", "why"),
    [
        (ROWS, [1.0], None, "got indices of shape \\(1,\\) and dtype float64"),
        (ROWS, [[1]], None, "got indices of shape \\(1, 1\\)"),
        (ROWS, 3, None, "got indices of shape \\(\\)"),
        (ROWS.T, [1], None, "C-contiguous"),
        (np.array(3), [0], None, "got rows of shape \\(\\)"),
        (ROWS.tolist(), [0], None, "got rows of list"),
        (np.array([None]), [0], None, "dtype object"),
        (ROWS, [1], np.empty((2, 2, 3), np.float32), "got out of shape \\(2, 2, 3\\)"),
        (ROWS, [1], np.empty((1, 2, 3), np.float64), "got out of .*float64"),
        (ROWS, [1], np.empty((1, 3, 2), np.float32).transpose(0, 2, 1), "got out of"),
        (ROWS, [1], ROWS[:1], "in the memory of the rows"),
        (ROWS, [1], [1], "got out of list: out must be an array"),
    ],
    ids=range(12),
)
def test_other_arguments_are_refused(rows, indices, out, why):
    with pytest.raises(ConfigurationError, match=why):
        excerpt(rows, indices, out)


def test_another_thread_goes_on_meanwhile():
    """With the GIL held, it would count no further than in one switch of threads, which takes microseconds here."""
    rows = np.zeros((4, 1 << 24), np.uint8)
    out = np.empty((16, 1 << 24), np.uint8)
    count, ended = [0], threading.Event()

    def go_on():
        while not ended.is_set():
            count[0] += 1

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        before = count[0]
        excerpt(rows, np.zeros(16, int), out)
        after = count[0]
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert after - before > 10_000


@pytest.mark.parametrize("offset", [0, 1, 5000])
@pytest.mark.parametrize("size", [0, 7, (1 << 24) - 1, (1 << 24) + 4097])
def test_a_copy_is_that_of_numpy_and_touches_nothing_else(size, offset):
    source = np.random.RandomState(0).bytes(size + offset)
    target = np.full(size + offset + 64, 7, np.uint8)
    copy_to(target[offset : offset + size], np.frombuffer(source, np.uint8)[offset:])
    assert bytes(target[offset : offset + size]) == source[offset:]
    assert (target[:offset] == 7).all()
    assert (target[offset + size :] == 7).all()


def test_an_index_out_of_range_has_its_position_in_the_whole_list():
    assert part_of([0, 1, 2, 3, 40], 7, 0, 2).tolist() == [0, 1]
    with pytest.raises(RowIndexError, match="got index 40 at position 4"):
        part_of([0, 1, 2, 3, 40], 7, 1, 2)


def test_parts_of_a_list_are_contiguous_and_even():
    indices = [4, 2, 6, 1, 0]
    parts = [part_of(indices, 7, rank, 3) for rank in range(3)]
    assert np.concatenate(parts).tolist() == indices
    assert sorted(map(len, parts)) == [1, 2, 2]
    assert part_of(slice(1, 6), 7, 1, 2).tolist() == [3, 4, 5]
    assert row_numbers(slice(None), 3).tolist() == [0, 1, 2]
