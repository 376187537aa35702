"""Gradients of JAX that are averaged between the kernels of the compiled step, here with the processor as the device.

The driver and NCCL are those of `processor_cuda.c` and `processor_nccl.c`; all else is what runs on GPUs. Tests of
other files run with such gradients too, see `both_ways`.
"""

import pytest
from keras_here import AS_TENSORS, keras
from scripts_here import script_path

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(300),
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="about JAX: run it with KERAS_BACKEND=jax"),
    pytest.mark.parametrize("run_keras", [AS_TENSORS], indirect=True),
]


@pytest.mark.parametrize("loss", ["sum_over_batch_size", "sum", "masked"])
def test_gradients_on_a_stream_are_those_of_one_process(run_keras, loss):
    """Batches of other sizes on the workers, and other numbers of them; against a step by hand on all rows."""
    run_keras(
        f"""
KIND = {loss!r}
rng = np.random.RandomState(1)
rows = [8, 5]
x = [rng.randn(4, n, 3, 6).astype("f4") for n in rows]
y = [rng.randn(4, n, 3, 2).astype("f4") for n in rows]
"""
        """
def make():
    keras.utils.set_random_seed(5)
    inputs = keras.Input((3, 6))
    hidden = L.Masking()(inputs) if KIND == "masked" else inputs
    model = keras.Model(inputs, L.Dense(2)(L.Dense(4, activation="tanh")(hidden)))
    return model

if KIND == "masked":
    x[0][:, 1:, 1:] = 0
batches = [4, 3][rank]
model = make()
reduction = "sum" if KIND == "sum" else "sum_over_batch_size"
model.compile(DistributedOptimizer(keras.optimizers.SGD(0.05)), keras.losses.MeanSquaredError(reduction=reduction))
flatten = lambda a, count: a[:count].reshape(-1, 3, a.shape[-1])
seen = []
watch = Watch(batch_end=lambda *_: seen.append(model.optimizer.gradient_average.on_device))
model.fit(flatten(x[rank], batches), flatten(y[rank], batches), batch_size=rows[rank], epochs=2, shuffle=False,
          verbose=0, callbacks=distribute([watch]))
assert seen and all(seen)

# By hand: the gradient of the loss of the rows of all workers that have a batch.
import jax
import jax.numpy as jnp
want = make()
state = [v.value for v in want.trainable_variables]

def loss_of(state, parts):
    total, divisor = 0.0, 0.0
    for mine, target in parts:
        out, _ = want.stateless_call(state, [], mine, training=True)
        square = ((out - target) ** 2).mean(-1)
        mask = (mine != 0).any(-1) if KIND == "masked" else jnp.ones(square.shape)
        total, divisor = total + (square * mask).sum(), divisor + mask.sum()
    return total if KIND == "sum" else total / divisor

for epoch in range(2):
    for k in range(4):
        parts = [(x[r][k], y[r][k]) for r in range(2) if k < [4, 3][r]]
        state = [value - 0.05 * slope for value, slope in zip(state, jax.grad(loss_of)(state, parts))]
for mine, right in zip(model.get_weights(), state):
    np.testing.assert_allclose(mine, np.asarray(right), rtol=2e-5, atol=2e-6)
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
"""
    ).require_success()


def test_a_worker_that_is_killed_ends_the_fit_of_the_other(run_keras):
    outcome = run_keras(script_path("keras_stream_a_worker_that_is_killed_ends_the_fit"))
    assert outcome.reported.get("told") == 1, outcome.logs[0]


def test_fits_on_a_stream_and_on_the_host_take_turns(run_keras):
    """A compiled step belongs to one of the two ways."""
    run_keras(script_path("keras_stream_fits_on_a_stream_and_on_the_host_take_turns")).require_success()


@pytest.mark.parametrize("steps", [1, 4])
def test_a_vote_is_seen_after_the_next_step_on_all_workers(run_keras, steps):
    run_keras(
        f"STEPS = {steps}\n"
        """
x, y = data(4 * 40)
model = dense()
model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", steps_per_execution=STEPS)
watch = Watch(batch_end=lambda callback, batch: rank == 0 and batch >= 11 and stop(callback))
model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=distribute([watch]))
counts = everyones([watch.batches * STEPS, len(watch.epochs)])
# The vote of the batch 11 travels with the next program, and is seen when another one has been started.
assert (counts == [12 + 2 * STEPS, 1]).all(), counts
"""
    ).require_success()


def test_a_loop_over_train_on_batch(run_keras):
    run_keras(script_path("keras_stream_a_loop_over_train_on_batch")).require_success()


HEAD = """
class Headed(keras.Model):
    '''Trains its last layer alone, in a step of its own.'''

    def __init__(self):
        super().__init__()
        self.hidden, self.head = L.Dense(4, activation="relu"), L.Dense(1)

    def call(self, x):
        return self.head(self.hidden(x))

    def train_step(self, state, batch):
        weights, fixed, slots, metrics = state
        x, y = batch
        gradients_of = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (_, (loss, out, fixed, metrics)), slopes = gradients_of(
            weights, fixed, metrics, x, y, None, training=True, optimizer_variables=slots)
        head, slots = self.optimizer.stateless_apply(slots, slopes[2:], weights[2:])
        logs, metrics = self._update_metrics_variables(metrics, loss, x, y, out, None)
        return logs, ([*weights[:2], *head], fixed, slots, metrics)

def make():
    keras.utils.set_random_seed(3)
    model = Headed()
    model(np.zeros((1, 3), "f4"))
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.05))
    optimizer.build(model.head.trainable_variables)
    model.compile(optimizer, "mse")
    return model
"""


def test_a_step_that_trains_some_weights_is_right_in_each_fit(run_keras):
    """Programs are compiled once, in the first fit; workers have other numbers of batches. Against NumPy."""
    run_keras(
        "import jax\n"
        + HEAD
        + """
rng = np.random.RandomState(4)
x, y = rng.rand(2, 20, 3).astype("f4"), rng.rand(2, 20, 1).astype("f4")
batches = [3, 5]
model = make()
w1, b1, w2, b2 = (np.array(v, "f8") for v in model.get_weights())
for fit in range(3):
    n = 4 * batches[rank]
    model.fit(x[rank, :n], y[rank, :n], batch_size=4, shuffle=False, verbose=0, callbacks=distribute())
    assert model.optimizer.gradient_average.on_device
    for k in range(5):
        theirs = [r for r in range(2) if k < batches[r]]
        rows = slice(4 * k, 4 * k + 4)
        hidden = np.maximum(np.concatenate([x[r, rows] for r in theirs]) @ w1 + b1, 0)
        errors = hidden @ w2 + b2 - np.concatenate([y[r, rows] for r in theirs])
        w2, b2 = w2 - 0.1 * hidden.T @ errors / len(errors), b2 - 0.1 * errors.mean(0)
    for mine, right in zip(model.get_weights(), [w1, b1, w2, b2]):
        np.testing.assert_allclose(mine, right, rtol=1e-5, atol=1e-6, err_msg=f"fit {fit}")
"""
    ).require_success()


def test_a_vote_of_a_later_fit_reaches_all_where_a_step_trains_some_weights(run_keras):
    run_keras(
        "import jax\n"
        + HEAD
        + """
model = make()
x, y = np.random.RandomState(rank).rand(2, 48, 3).astype("f4")
rows = dict(batch_size=4, verbose=0)
model.fit(x, y[:, :1], callbacks=distribute(), **rows)
watch = Watch(batch_end=lambda callback, batch: rank == 0 and batch >= 2 and stop(callback))
model.fit(x, y[:, :1], callbacks=distribute([watch]), **rows)
counts = everyones([watch.batches])
assert (counts == counts[0]).all() and counts[0] < 12, counts
"""
    ).require_success()
