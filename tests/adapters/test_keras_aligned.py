"""Memory that TensorFlow takes over without a copy, and that is used again once it has let go of it."""

import numpy as np
import pytest
from keras_here import keras

pytestmark = [pytest.mark.keras, pytest.mark.timeout(120)]


def test_an_array_is_used_again_once_nobody_refers_to_it():
    from platoon_plugins.keras.backends.aligned import ALIGNMENT_BYTES, AlignedArrays

    arrays = AlignedArrays()
    first, second = arrays.empty((3, 5), "f4"), arrays.empty((3, 5), "f4")
    places = [array.ctypes.data for array in (first, second)]
    assert len(set(places)) == 2
    assert all(place % ALIGNMENT_BYTES == 0 for place in places)
    assert (first.shape, first.dtype, first.flags.c_contiguous) == ((3, 5), np.float32, True)
    view = first[1:].T
    del first
    assert arrays.empty((3, 5), "f4").ctypes.data not in places  # a view is left of the first
    del view
    assert arrays.empty((3, 5), "f4").ctypes.data == places[0]
    assert arrays.empty((5, 3), "f4").ctypes.data not in places
    assert arrays.empty((0, 3), "f8").shape == (0, 3)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs TensorFlow: run it in .venv-tf (make test)")
def test_a_variable_takes_memory_over_and_what_was_read_before_stays():
    import tensorflow as tf

    from platoon_plugins.keras.backends import current

    def pointer(tensor):
        return np.asarray(memoryview(tensor)).ctypes.data

    layer = keras.layers.Dense(4)
    layer.build((3,))
    weight = current().variable(layer.kernel)
    before = layer.kernel.value.read_value()
    value = before.numpy().copy()
    array = weight.borrow()
    np.testing.assert_array_equal(array, value)
    array[...] = 2
    assert (before.numpy() == value).all()
    assert (keras.ops.convert_to_numpy(layer.kernel) == value).all()
    place = array.ctypes.data
    weight.give_back(array)
    assert pointer(layer.kernel.value.read_value()) == place
    # Nobody else has it: training goes on in the same memory.
    del array
    layer.kernel.value.assign_add(tf.ones((3, 4)))
    assert pointer(layer.kernel.value.read_value()) == place
    # What was read, or borrowed, before a synchronization stays as it was.
    read, borrowed = layer.kernel.value.read_value(), weight.borrow()
    again = weight.borrow()
    again[...] = 7
    weight.give_back(again)
    assert (read.numpy() == 3).all()
    assert (borrowed == 3).all()
    assert (keras.ops.convert_to_numpy(layer.kernel) == 7).all()
    weight.give_back(borrowed)
    assert (keras.ops.convert_to_numpy(layer.kernel) == 3).all()
