"""On JAX compiled steps begin by the synchronization before them: nothing is lost, and who looks sees it made."""

import pytest
from cuda_center_jobs import BY_JAX, runner

pytestmark = [pytest.mark.backend, pytest.mark.timeout(600)]

COUNTED = """
from platoon_base.jax_arrays import Gate
from platoon_plugins.keras.backends import jax_groups

STEPS, EPOCHS = 12, 3
made = {"in steps": 0, "apart": 0}

def counting(name, plain):
    def counted(*args):
        made[name] += 1
        return plain(*args)
    return counted

# A step makes the calls of `queue`, a program of its own those of `change_now`.
jax_groups.queue_all = counting("in steps", jax_groups.queue_all)
jax_groups.change_now = counting("apart", jax_groups.change_now)

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

def require_failure(begin):
    '''Fit on both workers; on rank 0 what `begin` prepares fails, and the model has its weights.'''
    model = ones(keras.optimizers.SGD(1.0))
    if rank:
        fit(model, epochs=1)
        return
    begin()
    with pytest.raises(RuntimeError, match="the device has no more"):
        fit(model, epochs=1)
    model.jax_state_sync()
    assert 0 < value(model) <= size * STEPS, value(model)

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


def test_without_the_c_extension_synchronizations_are_programs_of_their_own(run):
    run(
        """
jax_groups.gate_of = lambda owner: None
model = ones(keras.optimizers.SGD(1.0))
fit(model, every=3)
assert value(model) == size * STEPS * EPOCHS, value(model)
assert made["in steps"] == 0, made
"""
    )


def test_a_function_that_a_user_puts_in_place_of_the_step_is_called(run):
    """With the first fit's step in it or not; and data end where nobody knew that they would."""
    run(
        """
import functools

def batches(steps):
    for _ in range(steps):
        yield np.full((4, 1), -1.0, "float32"), np.zeros((4, 1), "float32")

class Looks(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.model.jax_state_sync()
        value(self.model)

model, calls = ones(keras.optimizers.SGD(1.0)), [0]
total = 0
for way in ("first fit", "wraps it", "has it within"):
    plain = model.train_function

    def mine(*args, plain=plain):
        calls[0] += 1
        return plain(*args)

    if way != "first fit":
        model.train_function = functools.wraps(plain)(mine) if way == "wraps it" else mine
    for callbacks in ([], [Looks()]):
        model.fit(batches(STEPS), epochs=1, verbose=0,
                  callbacks=distribute(callbacks, rule=ASGD(), every_n_batches=1))
        total += size * STEPS
        assert value(model) == total, (way, value(model), total)
assert calls[0] >= 4 * STEPS, calls

import jax

class Copies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        step = self.model.train_function

        @functools.wraps(step)
        def copying(state, *args):
            return step(jax.tree.map(jax.numpy.copy, state), *args)

        if epoch == 0:
            self.model.train_function = copying

model = ones(keras.optimizers.SGD(1.0))
made.update({"in steps": 0, "apart": 0})
fit(model, Copies())
assert value(model) == size * STEPS * EPOCHS, value(model)
assert made["in steps"] - made["apart"] >= STEPS * EPOCHS // 2, made
"""
    )


def test_a_generator_may_synchronize(run):
    """It is asked for a batch within the step, for which the synchronization was put off."""
    run(
        """
from watching import position

def batches():
    for number in range(STEPS * EPOCHS):
        worker.barrier("a batch is drawn")
        assert position(rank).steps == counted[0], (number, position(rank), counted)
        yield np.full((4, 1), -1.0, "float32"), np.zeros((4, 1), "float32")

class Counts(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        counted[0] = batch

model, counted = ones(keras.optimizers.SGD(1.0)), [0]
model.fit(batches(), epochs=1, verbose=0, callbacks=distribute([Counts()], rule=ASGD(), every_n_batches=1))
assert value(model) == size * STEPS * EPOCHS, value(model)
"""
    )


def test_the_fit_behind_one_that_raised_synchronizes_in_its_steps(run):
    run(
        """
class Raises(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 5:
            raise KeyboardInterrupt

model = ones(keras.optimizers.SGD(1.0))
with pytest.raises(KeyboardInterrupt):
    fit(model, Raises())
worker.barrier("all were interrupted")
first = value(model)
made.update({"in steps": 0, "apart": 0})
fit(model)
assert made["in steps"] - made["apart"] >= (STEPS - 2) * EPOCHS, made
assert value(model) >= size * STEPS * EPOCHS, (value(model), first)
"""
    )


def test_calls_of_earlier_steps_do_not_take_the_work_of_a_later_one(run):
    """On the CPU many steps are queued before the first runs: each synchronization is made before its own step."""
    run(
        """
model = keras.Sequential([keras.Input((400,)), *[keras.layers.Dense(400) for _ in range(4)], keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(1e-6), "mse")
begun, found, gates = [0], [], []

class Counts(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        begun[0] += 1

let_in, queue = Gate.let_one_in, jax_groups.StepCall.__call__

def noting(self):
    gates.append(self)
    let_in(self)

def queueing(self, *args):
    found.append((gates[-1].came, begun[0]))
    queue(self, *args)

Gate.let_one_in, jax_groups.StepCall.__call__ = noting, queueing
x = np.ones((32 * 60, 400), "float32")
for _ in range(2):
    model.fit(x, x[:, :1], 32, 1, verbose=0, callbacks=distribute([Counts()], rule=ASGD(), every_n_batches=4))
# The call in the step of this number is let in, and it is the step that is being started.
assert len(found) >= 24, found
assert all(number == step for number, step in found), found
"""
    )


def test_a_synchronization_counts_as_made_when_it_is(run):
    """A worker that is killed before the next step starts goes on where the center has its steps."""
    run(
        """
from watching import position

class Position(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 4:
            worker.barrier("all have synchronized")  # makes those that were put off
            assert position(rank).steps == 4, position(rank)
        elif batch > 4:
            assert position(rank).steps == batch - 1, (batch, position(rank))
        counted.append(batch)

counted = []
model = ones(keras.optimizers.SGD(1.0))
fit(model, Position(), epochs=1)
assert counted == [*range(STEPS)]
assert made["in steps"] - made["apart"] >= STEPS - 5, made

class Period(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch in (10, 11):  # the first of a fit is not put off
            assert position(rank).steps == STEPS + 5 * (batch - 9), (batch, position(rank))

fit(model, Period(), epochs=1, every=5)
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
plain, launch, calls, now = jax_groups.StepCall.__call__, Driver.launch, iter(range(1000)), []

def out_of_a_step(self, *args):
    now.append(next(calls))
    plain(self, *args)
    now.clear()

def failing(self, *args):
    if now == [3]:
        raise RuntimeError("the device has no more")
    return launch(self, *args)

def begin():
    jax_groups.StepCall.__call__, Driver.launch = out_of_a_step, failing

require_failure(begin)
"""
    )


def test_each_row_is_read_once_while_a_thread_reads_ahead(run):
    """Also with a shorter last batch, and after a fit that ends within an epoch; no thread stays."""
    run(
        """
import threading
import jax
from platoon_plugins.keras import prepare, reshuffling

if jax.default_backend() == "cpu":  # There nothing reads ahead.
    reshuffling.is_on_device = lambda: True

class Ahead(keras.callbacks.Callback):
    def __init__(self, last=None):
        super().__init__()
        self.seen, self.last = set(), last
    def on_train_batch_end(self, batch, logs=None):
        self.seen |= {thread.name for thread in threading.enumerate() if "platoon-rows" in thread.name}
        self.model.stop_training = batch == self.last

class Sum(keras.metrics.Sum):
    def update_state(self, y, p, sample_weight=None):
        return super().update_state(y)

rows = 43 * size
x, y = np.ones((rows, 1), "float32"), 2.0 ** (np.arange(rows) % 20)
inputs = keras.Input((1,))
model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
model.compile("sgd", "mse", metrics=[Sum(name="total")])
prepare(model)
ahead = Ahead()
history = model.fit(x, y.astype("float32"), batch_size=4, epochs=3, verbose=0, callbacks=[ahead])
assert history.history["total"] == [y.sum()] * 3, (history.history, y.sum())
assert ahead.seen
model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=[Ahead(last=2)])
assert not [thread.name for thread in threading.enumerate() if "platoon-rows" in thread.name]
        """
    )
