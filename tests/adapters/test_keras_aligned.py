"""Memory that a back end takes over without a copy, or lets be changed: nobody else sees it."""

import numpy as np
import pytest
from keras_here import keras
from scripts_here import script_path

pytestmark = [pytest.mark.keras, pytest.mark.backend, pytest.mark.timeout(240)]


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


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="needs TensorFlow: run it in .nox/tf (make test)")
def test_a_weight_of_tensorflow_is_changed_in_its_memory_and_what_was_read_before_stays():
    import tensorflow as tf

    from platoon_plugins.keras.backends import current

    def pointer(tensor):
        return np.asarray(memoryview(tensor)).ctypes.data

    layer = keras.layers.Dense(4)
    layer.build((3,))
    weight, kernel = current().variable(layer.kernel), layer.kernel
    value, place = kernel.numpy().copy(), pointer(kernel.value.read_value())
    array = weight.borrow()
    np.testing.assert_array_equal(array, value)
    assert array.ctypes.data == place
    array[...] = 2
    weight.give_back(array)
    assert (kernel.numpy() == 2).all()
    # Nobody else has it: training goes on in the same memory, and reads do not copy.
    del array
    kernel.value.assign_add(tf.ones((3, 4)))
    assert pointer(kernel.value.read_value()) == pointer(kernel.value.read_value()) == place
    # What was read, or borrowed, before a synchronization stays as it was.
    read, borrowed = kernel.value.read_value(), weight.borrow()
    again = weight.borrow()
    again[...] = 7
    weight.give_back(again)
    assert (read.numpy() == 3).all()
    assert (borrowed == 3).all()
    assert (kernel.numpy() == 7).all()
    weight.give_back(borrowed)
    assert (kernel.numpy() == 3).all()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX: run it in .nox/keras3 (make test)")
def test_a_weight_of_jax_is_changed_in_its_memory_and_what_was_read_before_stays():
    from platoon_plugins.keras.backends import current

    layer = keras.layers.Dense(4)
    model = keras.Sequential([keras.Input((3,)), layer])
    model.compile("sgd", "mse")
    weight, kernel = current().weights(model)[0], layer.kernel
    place = kernel.value.unsafe_buffer_pointer()
    value = kernel.numpy().copy()
    array = weight.borrow()
    np.testing.assert_array_equal(array, value)
    assert array.ctypes.data == place
    array[...] = 2
    weight.give_back(array)
    assert kernel.value.unsafe_buffer_pointer() == place
    assert (kernel.numpy() == 2).all()
    # The next program may have the memory again, as nobody keeps it.
    del array
    weight.borrow()
    assert kernel.value.unsafe_buffer_pointer() == place
    # What NumPy shows stays as it was: a view that a callback has, and what was borrowed before.
    view, borrowed = np.asarray(kernel.value), weight.borrow()
    again = weight.borrow()
    again[...] = 7
    weight.give_back(again)
    assert (view == 2).all()
    assert (borrowed == 2).all()
    assert (kernel.numpy() == 7).all()
    weight.give_back(borrowed)
    assert (kernel.numpy() == 2).all()
    # A compiled training step of Keras ends the arrays of JAX that somebody kept, and so does a synchronization.
    kept = kernel.value
    weight.borrow()
    assert kept.is_deleted()
    for options in ({"run_eagerly": True}, {"jit_compile": False}):
        model.compile("sgd", "mse", **options)
        weight, *_ = current().weights(model)
        kept = kernel.value
        weight.borrow()[...] = 5
        assert (np.asarray(kept) == 2).all()


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX: run it in .nox/keras3 (make test)")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_of_jax_have_their_dtypes_when_they_are_borrowed(dtype):
    from platoon_plugins.keras.backends import current

    for shape in [(), (0, 3), (2, 3)]:
        variable = keras.Variable(np.ones(shape), dtype=dtype)
        weight = current().variable(variable)
        weight.donated = True
        array = weight.borrow()
        assert (str(array.dtype), array.shape) == (dtype, shape)
        array[...] = 3
        weight.give_back(array)
        assert (np.asarray(variable.value, "f4") == 3).all()
        assert keras.backend.standardize_dtype(variable.dtype) == dtype


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX: run it in .nox/keras3 (make test)")
def test_values_go_to_a_device_in_one_call_and_stay_there(monkeypatch):
    import jax

    from platoon_base.worker.initial_values import set_values
    from platoon_plugins.keras.backends import current

    place, calls, plain = jax.devices()[0], [], jax.device_put
    kinds = [((), "float32"), ((2, 3), "bfloat16"), ((4,), "int32")]
    variables = [keras.Variable(np.zeros(shape, dtype), dtype=dtype) for shape, dtype in kinds]
    variables[1].assign(jax.device_put(variables[1].value, place))
    committed = [variable.value.committed for variable in variables]
    weights = [current().variable(variable) for variable in variables]
    monkeypatch.setattr(type(weights[0]), "on_host", lambda weight: False)  # As on a GPU.
    monkeypatch.setattr(jax, "device_put", lambda *given: calls.append(given) or plain(*given))
    values = [np.full(shape, number + 1.0) for number, (shape, _) in enumerate(kinds)]
    set_values(weights, values)
    for value in values:
        value[...] = 9
    assert len(calls) == 1
    assert [(variable.value.dtype, variable.value.shape) for variable in variables] == [
        (np.dtype(variable.dtype), shape) for variable, (shape, _) in zip(variables, kinds)
    ]
    assert all((np.asarray(v.value, "f4") == number + 1).all() for number, v in enumerate(variables))
    assert [variable.value.committed for variable in variables] == committed == [False, True, False]


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX: run it in .nox/keras3 (make test)")
def test_what_a_callback_keeps_in_the_last_epoch_is_there_after_the_fit(run_keras):
    """As in a plain fit, whose later steps end what was kept in earlier epochs."""
    run_keras(script_path("keras_aligned_what_a_callback_keeps_in_the_last_epoch")).require_success()
