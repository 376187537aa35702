"""Calls out of programs that XLA compiled for the CPU: in the program's memory, in order, with errors that are told."""

import gc

import numpy as np
import pytest
from keras_here import keras
from scripts_here import script_path

pytest.importorskip(
    "platoon_base.jax_arrays",
    reason="no JAX, or no C extension: `make setup` builds it, if there is a compiler",
    exc_type=ImportError,
)

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backend,
    pytest.mark.timeout(240),
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="needs JAX: run it with KERAS_BACKEND=jax (make test)"),
]


class Times:
    """Multiplies, and keeps what it was called with; it takes its time, so that others could come before."""

    def __init__(self, factor, calls, work=0):
        self.factor, self.calls, self.work, self.in_place = factor, calls, work, []

    def __call__(self, outs, ins, scalar):
        if scalar < 0:
            raise ValueError(f"got {scalar}")
        for _ in range(self.work):
            np.linalg.inv(np.eye(300) + 1)
        self.calls.append((self.factor, scalar))
        self.in_place = [a.ctypes.data == b.ctypes.data for a, b in zip(outs, ins)]
        for out, array in zip(outs, ins):
            np.multiply(array, out.dtype.type(self.factor * scalar), out=out)


def test_arrays_of_all_sorts_are_changed_in_the_programs_memory():
    import jax
    import jax.numpy as jnp

    from platoon_base.jax_arrays import call_in_place

    calls, twice = [], None
    twice = Times(2, calls)

    @jax.jit
    def program(x, scalar):
        arrays = [x @ x.T, x.sum(), jnp.zeros((0, 3)), x[0].astype("float16")]
        return call_in_place(twice, arrays, scalar)

    x = np.arange(6, dtype="f4").reshape(2, 3)
    product, total, nothing, half = map(np.asarray, program(x, 3.0))
    np.testing.assert_array_equal(product, 6 * (x @ x.T))
    assert (total, nothing.shape, half.dtype) == (90, (0, 3), np.float16)
    np.testing.assert_array_equal(half, [0, 6, 12])
    assert [array for array, size in zip(twice.in_place, (4, 1, 0, 3)) if size] == [True] * 3
    # Without a program around it, the argument stays as it was.
    kept = jnp.ones(3)
    (tripled,) = call_in_place(Times(3, calls), [kept], 1)
    np.testing.assert_array_equal(tripled, [3, 3, 3])
    np.testing.assert_array_equal(kept, [1, 1, 1])


def test_the_calls_of_a_program_come_in_the_order_in_which_they_were_traced():
    import jax

    from platoon_base.jax_arrays import call_in_place

    calls = []
    slow, fast = Times(2, calls, work=20), Times(5, calls)

    @jax.jit
    def program(x):  # neither call needs a result of the other
        return call_in_place(slow, [x @ x], 1.0), call_in_place(fast, [x + 1], 1.0), call_in_place(slow, [x - 1], 4.0)

    for _ in range(3):
        jax.block_until_ready(program(np.ones((4, 4), "f4")))
    assert calls == [(2, 1), (5, 1), (2, 4)] * 3


class Counted:
    """Counts its calls, and leaves the memory as it is."""

    def __init__(self):
        self.calls = 0

    def __call__(self, blocks, stream):
        self.calls += 1


def test_a_call_behind_an_array_stays_in_the_loop_that_changes_it():
    """Its own argument is the same in each step: XLA would make the call once, before the loop."""
    import jax
    import jax.numpy as jnp

    from platoon_base.jax_arrays import call_on_stream

    header, sums = Counted(), Counted()

    @jax.jit
    def program(x):
        def step(number, x):
            (same,) = call_on_stream(header, [jnp.ones(5)], after=[x])
            (found,) = call_on_stream(sums, [x + number], after=[same])
            return found

        return jax.lax.fori_loop(0, 5, step, x)

    np.testing.assert_array_equal(program(jnp.zeros(3)), [10, 10, 10])
    assert (header.calls, sums.calls) == (5, 5)


def test_a_gate_lets_one_call_in():
    import jax
    import jax.numpy as jnp

    from platoon_base.jax_arrays import call_on_stream, gate_of

    counted, others, owner = Counted(), Counted(), Counted()
    gate = gate_of(owner)
    before = gate.came
    program = jax.jit(lambda x: call_on_stream(counted, [call_on_stream(others, [x])[0] + 1], gate=gate)[0])

    def run():
        np.testing.assert_array_equal(program(jnp.zeros(3)), [1, 1, 1])
        return counted.calls

    assert run() == 0
    gate.let_one_in()
    assert [run(), run()] == [1, 1]
    gate.let_one_in()
    gate.shut()
    assert run() == 1
    assert others.calls == 4  # there is no gate before them
    assert gate.came == before + 4
    del owner
    gc.collect()
    assert gate_of(others).number <= gate.number  # it is free again


def test_an_error_ends_the_program_with_its_text():
    import jax

    from platoon_base.jax_arrays import call_in_place

    calls = []
    twice = Times(2, calls)
    program = jax.jit(lambda x, scalar: call_in_place(twice, [x], scalar)[0] + 1)
    with pytest.raises(jax.errors.JaxRuntimeError, match="ValueError: got -1.0"):
        jax.block_until_ready(program(np.ones(3, "f4"), -1.0))
    np.testing.assert_array_equal(program(np.ones(3, "f4"), 1.0), [3, 3, 3])


def test_without_the_extension_averages_are_copied(run_keras):
    run_keras(script_path("keras_xla_calls_without_the_extension")).require_success()
