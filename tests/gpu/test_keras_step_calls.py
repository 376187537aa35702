"""On JAX compiled steps begin by the synchronization before them: nothing is lost, and who looks sees it made."""

import pytest
from cuda_center_jobs import BY_JAX, runner

pytestmark = pytest.mark.timeout(600)

COUNTED = """
from platoon_plugins.keras.backends import jax_arrays, jax_step_calls

STEPS, EPOCHS = 12, 3
made = {"in steps": 0, "apart": 0}

def counting(name, plain):
    def counted(*args):
        made[name] += 1
        return plain(*args)
    return counted

# A step makes the calls of `queue`, a program of its own those of `change_now`.
jax_step_calls.queue_all = counting("in steps", jax_step_calls.queue_all)
jax_step_calls.change_now = counting("apart", jax_step_calls.change_now)

def ones(optimizer, **compiled):
    '''Make a model whose weights grow by one in each step, exactly: their gradient is -1.'''
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1000, use_bias=False, kernel_initializer="zeros")(inputs))
    model.compile(optimizer, lambda y, p: keras.ops.sum(p, axis=-1), **compiled)
    return model

def fit(model, *callbacks, epochs=EPOCHS, rule=None, every=1, steps=STEPS):
    x = np.full((4 * steps, 1), -1.0, "float32")
    return model.fit(x, x, batch_size=4, epochs=epochs, verbose=0, shuffle=False,
                     callbacks=distribute([*callbacks], rule=rule or ASGD(), every_n_batches=every))

def value(model):
    (weights,) = model.get_weights()
    assert (weights == weights[0, 0]).all()
    return float(weights[0, 0])
"""


@pytest.fixture(params=["jax", BY_JAX])
def run(run_job, request):
    """Run a script on two workers with Keras on JAX, behind `COUNTED`."""
    start = runner(run_job, request)
    return lambda text, **options: start(COUNTED + text, **options).require_success()


def test_no_step_is_lost_and_each_begins_by_the_synchronization(run):
    """By ASGD the center is the sum of the progress of all, in whole numbers."""
    run(
        """
model = ones(keras.optimizers.SGD(1.0))
for number in (1, 2):  # the second fit goes on with the compiled step
    made.update({"in steps": 0, "apart": 0})
    fit(model)
    assert value(model) == number * size * STEPS * EPOCHS, (number, value(model))
    # In front of the first step of an epoch there is nothing to synchronize.
    assert made["in steps"] - made["apart"] >= (STEPS - 2) * EPOCHS, made
    assert made["apart"] <= EPOCHS + 1, made
model.compile(keras.optimizers.SGD(1.0), lambda y, p: keras.ops.sum(p, axis=-1))
fit(model)
assert value(model) == 3 * size * STEPS * EPOCHS, value(model)
"""
    )


def test_without_the_c_extension_the_same_happens(run):
    """Then all calls come to Python."""
    run(
        """
from platoon_plugins.keras.backends import xla_calls
xla_calls.gates = None
model = ones(keras.optimizers.SGD(1.0))
fit(model, every=3)
assert value(model) == size * STEPS * EPOCHS, value(model)
assert made["in steps"] - made["apart"] >= EPOCHS, made
"""
    )


def test_longer_periods_several_steps_a_call_and_batches_of_another_size(run):
    run(
        """
model = ones(keras.optimizers.SGD(1.0), steps_per_execution=3)
fit(model, every=4)
assert value(model) == size * STEPS * EPOCHS, value(model)
model = ones(keras.optimizers.SGD(1.0))
x = np.full((4 * STEPS + 2, 1), -1.0, "float32")  # the last batch has two rows, so its step is compiled anew
for _ in range(2):
    made.update({"in steps": 0, "apart": 0})
    model.fit(x, x, batch_size=4, epochs=EPOCHS, verbose=0, callbacks=distribute(rule=ASGD(), every_n_batches=5))
    assert made["in steps"] - made["apart"] >= 2 * EPOCHS - 1, made
assert value(model) == 2 * size * (STEPS + 1) * EPOCHS, value(model)
"""
    )


def test_who_looks_at_the_weights_sees_them_synchronized(run):
    """A callback before each batch, behind those of this package; all have made the step before."""
    run(
        """
class Looks(keras.callbacks.Callback):
    seen = 0

    def on_train_batch_begin(self, batch, logs=None):
        if batch % 2 == 0:
            return  # so that some steps begin by a synchronization
        worker.barrier("all have synchronized")
        backend.attach(self.model)
        worker.copy_to_local()
        self.seen = value(self.model)
        worker.barrier("all have looked")
        # Only the steps behind the latest look can be missing.
        assert self.seen % size == 0 and self.seen >= size * batch, (batch, self.seen)

model = ones(keras.optimizers.SGD(1.0))
fit(model, Looks())
assert value(model) == size * STEPS * EPOCHS, value(model)

class Sets(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 5:  # what is put off comes first
            self.model.jax_state_sync()
            (weights,) = self.model.get_weights()
            self.model.set_weights([weights + 1000])

model = ones(keras.optimizers.SGD(1.0))
fit(model, Sets(), epochs=1)
assert value(model) == size * (STEPS + 1000), value(model)
"""
    )


def test_an_error_of_a_synchronization_ends_the_fit_and_the_model_has_its_weights(run):
    run(
        """
from platoon_base.devices.cuda import Driver
plain, launch, calls, now = jax_step_calls.StepCall.queue, Driver.launch, iter(range(1000)), []

def out_of_a_step(self, *args):
    now.append(next(calls))
    plain(self, *args)
    now.clear()

def failing(self, *args):
    if now == [3]:
        raise RuntimeError("the device has no more")
    return launch(self, *args)

model = ones(keras.optimizers.SGD(1.0))
if rank == 0:
    jax_step_calls.StepCall.queue, Driver.launch = out_of_a_step, failing
    with pytest.raises(RuntimeError, match="the device has no more"):
        fit(model, epochs=1)
    model.jax_state_sync()
    assert 0 < value(model) <= size * STEPS, value(model)
else:
    fit(model, epochs=1)
"""
    )
