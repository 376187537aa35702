"""Packing: every array comes back from its place in the buffer, whatever its shape, order and dtype."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platoon_base.collectives.flat import ALONE_BYTES, FlatBuffers, pack, unpack
from platoon_base.errors import ConfigurationError

pytestmark = pytest.mark.base

EXAMPLES = settings(max_examples=80, deadline=None, derandomize=True)

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)


def arrays_of(shapes, dtype="float32"):
    rng = np.random.RandomState(0)
    return [np.asarray(rng.randint(0, 100, shape), dtype) for shape in shapes]


@EXAMPLES
@given(shapes=shapes, transposed=st.booleans())
def test_unpack_is_the_inverse_of_pack(shapes, transposed):
    arrays = [a.T if transposed else a for a in arrays_of(shapes)]
    buffer = pack(arrays)
    np.testing.assert_array_equal(buffer, np.concatenate([a.ravel() for a in arrays]))
    back = [np.empty(a.shape, a.dtype) for a in arrays]
    unpack(buffer, back)
    for array, found in zip(arrays, back):
        np.testing.assert_array_equal(found, array)


def doubled(calls):
    """Stand in for a collective call among two workers that hold the same."""

    def call(array, op, dest):
        calls.append((op, array.dtype.name, array.shape, array is dest, array.ctypes.data))
        dest[...] = array * 2

    return call


def test_one_call_for_each_dtype():
    calls, arrays = [], [*arrays_of([(2, 2), (3,), ()]), *arrays_of([(2,), (5,)], "int64")]
    outs = [np.empty_like(a) for a in arrays]
    FlatBuffers().combine(doubled(calls), "sum", arrays, outs)
    assert [call[:4] for call in calls] == [("sum", "float32", (8,), True), ("sum", "int64", (7,), True)]
    for array, out in zip(arrays, outs):
        np.testing.assert_array_equal(out, array * 2)


def test_the_buffer_is_kept_and_grows():
    calls, buffers = [], FlatBuffers()
    for shapes in ([(3,), (4,)], [(2,), (2,)], [(3,), (4,)], [(30,), (40,)]):
        arrays = arrays_of(shapes)
        buffers.combine(doubled(calls), "sum", arrays, [np.empty_like(a) for a in arrays])
    assert [call[2] for call in calls] == [(7,), (4,), (7,), (70,)]
    first, second, third, _ = [call[4] for call in calls]
    assert first == second == third


def test_one_array_alone_is_not_copied():
    calls, (array,) = [], arrays_of([(2, 3)])
    out = np.empty_like(array)
    FlatBuffers().combine(doubled(calls), "sum", [array], [out])
    assert calls == [("sum", "float32", (6,), False, array.ctypes.data)]
    np.testing.assert_array_equal(out, array * 2)
    FlatBuffers().combine(doubled(calls), "sum", [array], [array])
    assert calls[1] == ("sum", "float32", (6,), True, array.ctypes.data)
    np.testing.assert_array_equal(out, array)


def test_large_arrays_are_not_copied_and_small_ones_go_together():
    n = ALONE_BYTES // 4
    calls, arrays = [], arrays_of([(3,), (n,), (2, 2), (2, n), ()])
    outs = [np.empty_like(a) for a in arrays]
    FlatBuffers().combine(doubled(calls), "sum", arrays, outs)
    assert [call[2] for call in calls] == [(n,), (2 * n,), (8,)]
    assert [call[4] for call in calls[:2]] == [arrays[1].ctypes.data, arrays[3].ctypes.data]
    for array, out in zip(arrays, outs):
        np.testing.assert_array_equal(out, array * 2)


def test_an_array_that_is_not_contiguous_is_refused():
    with pytest.raises(ConfigurationError, match="C-contiguous"):
        unpack(np.zeros(6), [np.zeros((2, 3)).T])
