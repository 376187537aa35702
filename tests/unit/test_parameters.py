"""Arrays and shared variables as parameters: changed in place where their memory allows, copied where not."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from plain_variable import Variable

from platoon_base.device_arrays import CudaArray, order_of
from platoon_base.errors import ConfigurationError
from platoon_base.parameters import Parameters

pytestmark = pytest.mark.base

DTYPES = ["float16", "float32", "float64"]


def non_contiguous(kind):
    """A view of shape (4, 3) whose elements do not lie in C order, and the memory that it lies on."""
    if kind == "transposed":
        memory = np.arange(12.0).reshape(3, 4)
        return memory.T, memory
    if kind == "strided":
        memory = np.arange(24.0).reshape(4, 6)
        return memory[:, ::2], memory
    memory = np.arange(12.0).reshape(4, 3)
    return memory[::-1], memory


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_memory_of_a_contiguous_array_is_borrowed(dtype):
    w, b = np.ones((2, 3), dtype), np.zeros(3, dtype)
    parameters = Parameters([w, b])
    borrowed = parameters.borrow()
    assert [np.shares_memory(a, p) for a, p in zip(borrowed, (w, b))] == [True, True]
    borrowed[0][1, 2] = 7
    assert w[1, 2] == 7
    parameters.give_back(borrowed)
    np.testing.assert_array_equal(w, [[1, 1, 1], [1, 1, 7]])


@pytest.mark.parametrize("kind", ["transposed", "strided", "reversed"])
def test_another_array_is_copied_out_and_back(kind):
    view, memory = non_contiguous(kind)
    before, whole = view.copy(), memory.copy()
    parameters = Parameters([view])
    (borrowed,) = parameters.borrow()
    assert borrowed.flags.c_contiguous
    assert borrowed.flags.writeable
    np.testing.assert_array_equal(borrowed, before)
    borrowed += 100
    parameters.give_back([borrowed])
    np.testing.assert_array_equal(view, before + 100)
    assert (memory != whole).sum() == 12, "what lies between the elements of the view is not its own"


def test_the_memory_of_a_shared_variable_is_borrowed():
    memory = np.ones((2, 3))
    (borrowed,) = Parameters([Variable("", memory)]).borrow()
    assert borrowed is memory


@pytest.mark.parametrize("kind", ["read-only", "transposed"])
def test_a_shared_variable_whose_memory_cannot_be_used_is_copied_out_and_set(kind):
    memory = np.arange(6.0).reshape(2, 3)
    if kind == "read-only":
        memory.flags.writeable = False
    variable = Variable("", memory if kind == "read-only" else memory.T)
    before = variable.value.copy()
    parameters = Parameters([variable])
    (borrowed,) = parameters.borrow()
    borrowed += 100
    np.testing.assert_array_equal(variable.value, before)
    parameters.give_back([borrowed])
    np.testing.assert_array_equal(variable.value, before + 100)


def read_only():
    array = np.zeros(3)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (3.0, "got float as parameter 1"),
        ([1.0, 2.0], "got list as parameter 1"),
        (None, "got NoneType as parameter 1"),
        ("W", "got str as parameter 1"),
        (np.float64(3), "got float64 as parameter 1"),
        (np.zeros(3, int), "parameter 1 is of dtype int64"),
        (np.zeros(3, bool), "parameter 1 is of dtype bool"),
        (np.zeros(3, complex), "parameter 1 is of dtype complex128"),
        (np.zeros(3, object), "parameter 1 is of dtype object"),
        (np.zeros(3, np.dtype("float32").newbyteorder()), "parameter 1 is of dtype .f4: .* byte order"),
        (read_only(), "parameter 1 is a read-only array"),
        (np.broadcast_to(np.float32(1), 3), "parameter 1 is a read-only array"),
        (np.zeros(3, [("x", "f4")]), "parameter 1 is of dtype"),
        (np.rec.array([(1.0,)], [("x", "f4")]), "parameter 1 is of dtype"),
        (np.ma.masked_array(np.zeros(3), [0, 1, 0]), "got a MaskedArray as parameter 1: .* its mask"),
        (np.ma.zeros((3, 4)).T, "got a MaskedArray as parameter 1"),
        (("w", np.ma.zeros(3)), "got a MaskedArray as w"),
        (Variable("", np.ma.zeros(3)), "got a MaskedArray as parameter 1"),
        (as_strided(np.zeros(3), (3,), (0,)), "got parameter 1, several elements of which share memory"),
        (as_strided(np.zeros(9), (4, 3), (16, 8)), "got parameter 1, several elements of which share memory"),
    ],
)
def test_what_cannot_be_averaged_is_refused_by_its_number(wrong, text):
    with pytest.raises(ConfigurationError, match=text):
        Parameters([np.zeros(2), wrong])


def test_a_parameter_given_twice_is_refused():
    w = np.zeros(3)
    with pytest.raises(ConfigurationError, match="twice"):
        Parameters([w, np.zeros(3), w])
    assert len(Parameters([w, w.copy()])) == 2, "equal values are no reason"


def test_two_views_of_one_memory_are_refused():
    w = np.zeros((10, 10))
    with pytest.raises(ConfigurationError):
        Parameters([w, w.T])
    for first, second in [(w[:, :5], w[3, :3]), (w[:, :5][::-1], w[3, :3])]:  # another one begins between the two
        with pytest.raises(ConfigurationError, match="share memory"):
            Parameters([first, w[0, 5:], second])


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_views_that_only_interleave_are_taken(tmp_path):
    w = np.arange(24.0).reshape(4, 6)
    interleaved = as_strided(w, (2, 3), (8, 16))  # elements 0, 2, 4 and 1, 3, 5
    matrix, mapped = np.asmatrix(np.ones((2, 2))), np.memmap(tmp_path / "w", "f8", "w+", shape=(3,))
    parameters = Parameters([interleaved, w[1, ::2], w[1, 1::2], matrix, mapped])
    parameters.give_back([array + 100 for array in parameters.borrow()])
    np.testing.assert_array_equal(w[0], np.arange(100.0, 106))
    np.testing.assert_array_equal(w[1], np.arange(106.0, 112))
    np.testing.assert_array_equal(matrix, np.full((2, 2), 101))
    np.testing.assert_array_equal(mapped, np.full(3, 100))


class ArrayOnDevice(CudaArray):
    """Has the attributes that a center asks for, and no memory."""

    change = __array__ = __setitem__ = __getitem__ = reshape = copy = None


class Placed:
    """A parameter of an adapter with an array on a device, or none."""

    def __init__(self, name, *where):
        self.name, self._where = name, where

    def borrow(self):
        return np.zeros(3)

    def give_back(self, array):
        pass

    def memory(self):
        return None

    def on_device(self):
        return ArrayOnDevice((3,), "float64", *self._where) if self._where else None


@pytest.mark.parametrize(
    ("places", "why"),
    [
        ([(0,), (0,)], ""),
        ([(0,), (0, (2,))], "b is not contiguous"),
        ([(0,), ()], "b is in host memory"),
        ([(0,), (1,)], "b is on another device than a"),
        ([(), (0, (2,))], "a is in host memory"),
    ],
)
def test_the_first_parameter_that_keeps_the_center_off_the_device_is_named(places, why):
    parameters = Parameters([Placed(name, *where) for name, where in zip("ab", places)])
    assert parameters.off_device().startswith(why)
    assert bool(parameters.off_device()) == bool(why) == (parameters.context is None)


class OnDevice:
    """A parameter of an adapter whose copies are started first, and waited for afterwards."""

    def __init__(self, name, calls):
        self.name = name
        self._calls = calls
        self._copy = np.zeros(3)

    def prefetch(self):
        self._calls.append("prefetch")

    def borrow(self):
        self._calls.append("borrow")
        return self._copy

    def give_back(self, array):
        self._calls.append("give_back")

    def flush(self):
        self._calls.append("flush")

    def memory(self):
        return None

    def on_device(self):
        return None


def test_the_copies_of_all_parameters_are_started_before_one_is_waited_for():
    calls = []
    parameters = Parameters([OnDevice("w", calls), np.ones(2), OnDevice("b", calls)])
    calls.clear()
    borrowed = parameters.borrow()
    assert calls == ["prefetch", "prefetch", "borrow", "borrow"]
    calls.clear()
    parameters.give_back(borrowed)
    assert calls == ["give_back", "give_back", "flush", "flush"]


@pytest.mark.parametrize(
    ("shape", "axes", "order"),
    [
        ((2, 3, 4, 5), (0, 1, 2, 3), (0, 1, 2, 3)),
        ((2, 3, 4, 5), (0, 2, 3, 1), (0, 2, 3, 1)),  # torch.channels_last
        ((3, 4), (1, 0), (1, 0)),
        ((3, 1, 4), (2, 1, 0), (2, 0, 1)),  # an axis of one element may be anywhere
        ((), (), ()),
        ((4, 0), (1, 0), (0, 1)),
    ],
)
def test_the_order_of_a_dense_array_in_memory(shape, axes, order):
    array = np.zeros([shape[axis] for axis in axes]).transpose(np.argsort(axes))
    assert array.shape == shape
    assert order_of(shape, [stride // 8 for stride in array.strides]) == order


def test_an_array_with_gaps_or_overlaps_has_no_order():
    rows = np.zeros((4, 6))
    for array in (rows[:, ::2], rows[:, :3], np.broadcast_to(np.zeros(3), (2, 3))):
        assert order_of(array.shape, [stride // 8 for stride in array.strides]) is None
