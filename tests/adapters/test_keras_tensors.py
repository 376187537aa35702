"""Torch's tensors in collectives, and gradients that are averaged as tensors where they are; here on the CPU.

`gpu/test_torch_tensors.py` is about CUDA devices. Tests of other files run with such gradients too, see `both_ways`.
"""

import gc
import weakref

import pytest
from keras_here import AS_TENSORS, IN_ONE_BUCKET, keras

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .nox/keras3")

pytestmark = [
    pytest.mark.keras,
    pytest.mark.timeout(300),
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="about torch: run it with KERAS_BACKEND=torch"),
]


def test_collectives_take_tensors(run_job):
    run_job(
        """
        import numpy as np, torch
        from platoon_base import connect
        from platoon_base.errors import ConfigurationError

        worker = connect()
        rank, size = worker.global_rank, worker.global_size
        for dtype in (torch.float16, torch.float32, torch.float64, torch.int8, torch.int32, torch.int64, torch.uint8):
            for shape in ((), (17,), (3, 5)):
                x = torch.full(shape, rank + 1).to(dtype).requires_grad_(dtype.is_floating_point)
                assert (worker.all_reduce(x) == 3).all() and (x == rank + 1).all()
                assert (worker.all_reduce(x, "max") == 2).all()
                assert worker.all_gather(x).shape == (2, *shape) and (worker.all_gather(x)[1] == 2).all()
                assert worker.all_reduce(x, "sum", x) is x and (x == 3).all()
        x = torch.arange(10.0)[::2] + rank
        worker.broadcast([x], root=1)
        assert x.tolist() == [1, 3, 5, 7, 9]
        assert worker.reduce_scatter(torch.eye(2)).tolist() == [[2, 0], [0, 2]][rank]

        def refused(text, call, *args, **options):
            try:
                call(*args, **options)
            except ConfigurationError as exc:
                assert text in str(exc), exc
            else:
                raise AssertionError("nothing raised")

        refused("dtype torch.bfloat16", worker.all_reduce, torch.ones(2, dtype=torch.bfloat16))
        refused("dtype torch.bool", worker.all_reduce, torch.ones(2, dtype=torch.bool))
        refused("layout torch.sparse_coo", worker.all_reduce, torch.eye(2).to_sparse())
        refused("the first axis", worker.reduce_scatter, torch.ones(3))
        refused("out of shape (3,)", worker.all_reduce, torch.ones(2), dest=torch.ones(3))
        refused("out of type ndarray", worker.all_reduce, torch.ones(2), dest=np.ones(2, "f4"))
        """
    ).require_success()


as_tensors = pytest.mark.parametrize(
    "run_keras", [AS_TENSORS, IN_ONE_BUCKET], ids=["in the backward pass", "behind it"], indirect=True
)
in_the_backward_pass = pytest.mark.parametrize("run_keras", [AS_TENSORS], indirect=True)


@as_tensors
@pytest.mark.parametrize("loss", ["sum_over_batch_size", "sum", "masked"])
def test_gradients_as_tensors_are_those_of_one_process(run_keras, loss):
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
import torch
want = make()
for epoch in range(2):
    for k in range(4):
        there = [r for r in range(2) if k < [4, 3][r]]
        total, divisor = 0.0, 0.0
        for r in there:
            out = want(x[r][k], training=True)
            square = ((out - torch.from_numpy(y[r][k])) ** 2).mean(-1)
            mask = torch.from_numpy((x[r][k] != 0).any(-1)) if KIND == "masked" else torch.ones(square.shape)
            total, divisor = total + (square * mask).sum(), divisor + mask.sum()
        want.zero_grad()
        (total if KIND == "sum" else total / divisor).backward()
        with torch.no_grad():
            for weight in want.trainable_weights:
                weight.value.sub_(0.05 * weight.value.grad)
for mine, right in zip(model.get_weights(), want.get_weights()):
    np.testing.assert_allclose(mine, right, rtol=2e-5, atol=2e-6)
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
"""
    ).require_success()


@pytest.mark.parametrize("run_keras", [IN_ONE_BUCKET], indirect=True)
def test_a_vote_ends_with_its_epoch(run_keras):
    """Of a model with two optimizers: all workers have to vote, and one has come to the end of its epoch before."""
    run_keras(
        """
import torch
from platoon_plugins.keras import backends
from platoon_plugins.keras.several_averages import SeveralAverages

members = [backends.current().average(worker) for _ in range(2)]
several = SeveralAverages(members)
several.place(torch.device("cpu"))
like = [np.zeros(3, "f4")]
several.attach("all", like)
for member in members:
    member.like([torch.zeros(3)], lambda weight: like[0])
seen = []
for epoch in range(2):
    for batch in range([2, 4][rank] if epoch == 0 else 4):
        for member in members:
            (mean,) = member.averages([torch.full((3,), rank + 1.0)], 4.0)
            assert epoch == 0 or (mean == 1.5).all()
        several.count(1)
        seen.append(several.stops)
        if (epoch, rank, batch) == (0, 1, 2):
            several.vote()
    several.join()
assert not any(seen[-4:]), seen
"""
    ).require_success()


@pytest.mark.parametrize("run_keras", [IN_ONE_BUCKET], indirect=True)
def test_other_numbers_of_gradients_than_weights(run_keras):
    """As by an optimizer that was built for some of the weights, whose apply() is not told which."""
    run_keras(
        """
import torch
model = dense()
optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1))
model.compile(optimizer, "mse")
x, y = data(8)
model.fit(x, y, batch_size=4, verbose=0, callbacks=distribute())
average = optimizer.gradient_average
average.attach("any", [weight.numpy() for weight in model.trainable_weights])
for shapes in ([(3,)], [(2, 2)] * 7):
    means = average.averages([torch.full(shape, rank + 1.0) for shape in shapes], 4.0)
    assert [tuple(mean.shape) for mean in means] == shapes and all((mean == 1.5).all() for mean in means)
"""
    ).require_success()


@in_the_backward_pass
def test_workers_of_which_one_has_its_weights_on_the_host_average_there(run_keras):
    run_keras(
        """
import torch
from platoon_plugins.keras import backends
type(backends.current()).gradient_device = lambda backend, model: torch.device("cpu") if rank else None
model = dense(optimizer=DistributedOptimizer(keras.optimizers.SGD(0.1)))
x, y = data(8)
model.fit(x, y, batch_size=4, verbose=0, callbacks=distribute())
assert not model.optimizer.gradient_average.on_device
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
"""
    ).require_success()


# Notes the order of what happens in steps: gradients that have come, and buckets that were filled for a call each.
ORDER = """
from platoon_plugins.keras.backends import torch_backward
from platoon_plugins.keras.backends.torch_flats import Bucket

order = []
Early = torch_backward.EarlyAverages
arrived, take = Early.arrived, Early.take

def note_arrival(early, index, weight):
    order.append(index)
    arrived(early, index, weight)

def note_the_end(early, gradients):
    begun = take(early, gradients)
    order.append("end")
    return begun

Early.arrived, Early.take = note_arrival, note_the_end
fill = Bucket.fill

def note_call(bucket, gradients):
    order.append("call")
    fill(bucket, gradients)

def steps():  # each with the calls behind the backward pass of the one before
    text = " ".join(map(str, order))
    order.clear()
    return [step.split() for step in text.split("end")]

def train(model, rows=8, **options):
    x, y = data(rows, seed=rank)
    Bucket.fill = note_call
    try:
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=distribute(**options))
    finally:
        Bucket.fill = fill
"""


@in_the_backward_pass
def test_averages_begin_in_the_backward_pass_from_the_fourth_step_on(run_keras):
    """Those of the last layer before the gradients of the first one have come; and again in the next fit."""
    run_keras(
        ORDER
        + """
model = dense(optimizer=DistributedOptimizer("sgd"))
for fit in range(2):
    train(model, rows=20)
    first, second, third, fourth, fifth, _ = steps()
    assert sorted(first) == list("0123"), first
    # Of four buckets the last one, with the kernel of the first layer, always follows the pass.
    calls = [step.count("call") for step in (second, third, fourth, fifth)]
    assert calls == [1, 1, 4 + 3, 1 + 3], (second, third, fourth, fifth)
    for early in (fourth[4:], fifth[1:]):
        assert early.index("call") < early.index("0"), early
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
"""
    ).require_success()


@in_the_backward_pass
def test_gradients_that_are_changed_behind_the_backward_pass(run_keras):
    """In all steps: averages begin behind it. In later ones only: refused, as the other workers have the old ones."""
    outcome = run_keras(
        ORDER
        + """
import torch

def halve(weight):
    weight.grad.mul_(0.5)

def register(model):
    return model.trainable_weights[2].value.register_post_accumulate_grad_hook(halve)

class From(keras.callbacks.Callback):
    def __init__(self, batch):
        super().__init__()
        self.batch = batch
    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            register(self.model)

model, plain = dense(optimizer=DistributedOptimizer("sgd")), dense()
train(model, rows=20, callbacks=[From(0)])
first, second, third, rest = steps()  # after which no gradient is watched any more
assert [step.count("call") for step in (first, second, third)] == [0, 1, 1] and set(rest) == {"call"}, rest
register(plain)
(x, y), (x1, y1) = data(20, seed=0), data(20, seed=1)
rows = np.arange(20).reshape(5, 4)
for batch in rows:
    plain.train_on_batch(np.concatenate([x[batch], x1[batch]]), np.concatenate([y[batch], y1[batch]]))
np.testing.assert_allclose(flat(model.get_weights()), flat(plain.get_weights()), atol=1e-6)

model = dense(optimizer=DistributedOptimizer("sgd"))
try:
    train(model, rows=20, callbacks=[From(4)])
except PlatoonError as exc:
    worker.report({f"told {rank}": f"{type(exc).__name__}: {exc}"})
else:
    raise AssertionError("not refused")
"""
    )
    told = outcome.require_success().reported
    for rank in range(2):
        assert told[f"told {rank}"].startswith("ConfigurationError: got gradients that changed behind"), told


@in_the_backward_pass
def test_layers_that_a_callback_freezes_or_lets_train_again(run_keras):
    """The first or the last one, in the first steps or later; against one process."""
    run_keras(
        ORDER
        + """
class Freezing(keras.callbacks.Callback):
    def __init__(self, layer, batch, trainable):
        super().__init__()
        self.what = layer, batch, trainable
    def on_train_batch_begin(self, batch, logs=None):
        layer, when, trainable = self.what
        if batch == when:
            self.model.get_layer(layer).trainable = trainable

def fit(model, x, y, rows, layer, when, wrap=lambda callbacks: callbacks):
    for trainable in (False, True):  # to let a layer train again is a change within the second fit
        callbacks = [Freezing(layer, when, trainable)]
        model.fit(x, y, batch_size=rows, shuffle=False, verbose=0, callbacks=wrap(callbacks))

(x, y), (x1, y1) = data(24, seed=0), data(24, seed=1)
both = lambda a, b: np.concatenate([a.reshape(6, 4, -1), b.reshape(6, 4, -1)], 1).reshape(48, -1)
together = both(x, x1), both(y, y1)
mine = (x1, y1) if rank else (x, y)
for layer in ("hidden", "out"):
    for when in (1, 2, 4):
        model, alone = dense(optimizer=DistributedOptimizer("sgd")), dense()
        before = flat(model.get_weights())
        fit(model, *mine, 4, layer, when, distribute)
        fit(alone, *together, 8, layer, when)
        np.testing.assert_allclose(flat(model.get_weights()), flat(alone.get_weights()), atol=1e-6)
        everyone = everyones(flat(model.get_weights()))
        assert (everyone[0] == everyone[1]).all() and abs(everyone[0] - before).max() > 0.01
"""
    ).require_success()


@in_the_backward_pass
def test_a_weight_that_is_frozen_in_a_batch_that_not_all_workers_have(run_keras):
    """By torch's own means, which Keras does not see: the other worker has averages in as many calls as before."""
    run_keras(
        ORDER
        + """
model = dense(optimizer=DistributedOptimizer("sgd"))
weight = model.trainable_weights[2]
found = []

class Freeze(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 5:
            found.append(weight.numpy())
            weight.value.requires_grad_(False)

train(model, rows=[28, 20][rank], callbacks=[Freeze()])
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
assert len(found) == 1 - rank and all((weight.numpy() == each).all() for each in found)
"""
    ).require_success()


def test_hooks_of_torch_keep_nothing_and_end_with_a_step_that_raises():
    from platoon_plugins.keras.backends.torch_backward import EarlyAverages

    weight = torch.nn.Parameter(torch.ones(3))

    def backward():
        weight.grad = None
        (weight * 2).sum().backward()

    begun, averaged = [], []
    fill = lambda number, gradients: begun.append(number)  # noqa: E731
    early = EarlyAverages([weight], fill, averaged.append, torch.device("cpu"))
    early.expect([[0], []])
    with early.step():
        backward()
        assert begun == [0]
        assert early.take([weight.grad]) == 1
        early.wait()
        assert averaged == [0]
    try:
        with early.step():
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    with early.step():
        backward()
    assert begun == [0]

    early = EarlyAverages([weight], lambda *_: None, lambda _: None, torch.device("cpu"))
    kept = weakref.ref(early)
    del early
    gc.collect()
    assert kept() is None
    backward()


@in_the_backward_pass
def test_a_weight_of_torch_without_requires_grad_has_no_gradient(run_keras):
    """In a module of torch, whose weights Keras lists as trainable."""
    run_keras(
        ORDER
        + """
import torch
module = torch.nn.Linear(6, 4)
torch.nn.init.ones_(module.weight), torch.nn.init.zeros_(module.bias)
model = keras.Sequential([keras.Input((6,)), L.TorchModuleWrapper(module), L.Dense(3)])
model.compile(DistributedOptimizer("sgd"), "mse")
module.bias.requires_grad_(False)
train(model, rows=20)
assert set(order) == {"call"} and (module.bias == 0).all() and (module.weight != 1).any()
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
"""
    ).require_success()


@in_the_backward_pass
def test_a_fast_link_needs_no_buckets(run_keras):
    """A bucket has as many bytes as take BUCKET_S on the worker that has waited for nobody."""
    run_keras(
        ORDER
        + """
from platoon_plugins.keras.backends import torch_flats, torch_gradients

torch_gradients.BUCKET_S = 1e-3
model = dense(optimizer=DistributedOptimizer("sgd"))
for seconds, calls in (((1.0, 1e-3), [0, 1, 1]), ((1e-9, 1.0), [0, 1, 1]), ((0.02, 1.0), [0, 1, 1, 4 + 3, 1 + 3])):
    torch_flats.Flats.seconds = lambda flats: seconds[rank]
    train(model, rows=20)
    found = steps()
    assert len(found) == len(calls) + 1, (seconds, found)
    assert [step.count("call") for step in found[:-1]] == calls, (seconds, found)
"""
    ).require_success()


@in_the_backward_pass
def test_a_worker_that_dies_in_its_backward_pass_is_named(run_keras):
    """Within seconds, by the one whose averages have begun."""
    outcome = run_keras(
        ORDER
        + """
import signal, time

def die(weight):
    if sum(isinstance(each, int) for each in order) > 20:  # the sixth step
        os.kill(os.getpid(), signal.SIGKILL)

model = dense(optimizer=DistributedOptimizer("sgd"))
if rank == 1:
    model.trainable_weights[0].value.register_post_accumulate_grad_hook(die)
begun = time.monotonic()
try:
    train(model, rows=40)
except PlatoonError as exc:
    worker.report({"told": f"{type(exc).__name__}: {exc}", "took": time.monotonic() - begun})
"""
    )
    told = outcome.reported
    assert told["told"].startswith("WorkerLostError"), outcome.logs
    assert "rank 1" in told["told"], told
    assert told["took"] < 30, told


@in_the_backward_pass
def test_a_train_step_of_ones_own_averages_behind_its_backward_passes(run_keras):
    run_keras(
        ORDER
        + """
class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        self.zero_grad()
        for _ in range(2):
            self.compute_loss(x, y, self(x)).backward()
        weights = list(self.trainable_weights)
        with __import__("torch").no_grad():
            self.optimizer.apply([weight.value.grad for weight in weights], weights)
        return {}

inputs = keras.Input((6,))
model = Own(inputs, L.Dense(3)(L.Dense(4)(inputs)))
model.compile(DistributedOptimizer("sgd"), "mse")
train(model)
assert set(order) == {"call"}, order
everyone = everyones(flat(model.get_weights()))
assert (everyone[0] == everyone[1]).all()
"""
    ).require_success()


@in_the_backward_pass
def test_a_worker_without_a_batch_joins_averages_that_begin_in_the_backward_pass(run_keras):
    """In the first step of a fit too, when the workers agree whether they may."""
    run_keras(
        """
import torch
from platoon_plugins.keras import backends

weights = [torch.nn.Parameter(torch.ones(200)), torch.nn.Parameter(torch.ones(300))]
average = backends.current().average(worker)
average.place(torch.device("cpu"))
average.watch_backward(weights)
average.attach("any", [np.zeros(200, "f4"), np.zeros(300, "f4")])
for k in range(5 * (rank == 0)):
    with average.watched_step():
        for weight in weights:
            weight.grad = None
        average.weight = 4.0
        (weights[0] * (k + 1)).sum().backward(retain_graph=True)
        (weights[1] * 2).sum().backward()
        means = average.averages([weight.grad for weight in weights], average.take_weight())
    assert [mean.unique().tolist() for mean in means] == [[k + 1.0], [2.0]], (k, means)
assert average.join() == [5, 0]
"""
    ).require_success()


def test_sparse_gradients_are_refused_before_training_where_a_layer_tells_of_them(run_keras):
    """Within layers and models, and not where they do no harm: frozen, or with a rule."""
    outcome = run_keras(
        """
import torch
from platoon_plugins.keras import broadcast_variables
words, y = np.arange(8) % 10, np.ones((8, 4), "f4")
Wrapper = L.TorchModuleWrapper

class Within(L.Layer):
    def __init__(self, *modules):
        super().__init__()
        self.parts = [Wrapper(torch.nn.Sequential(*modules), name="parts")]
    def call(self, x):
        return self.parts[0](x)

class Unseen(L.Layer):
    def build(self, shape):
        self.table = self.add_weight(shape=(10, 4), initializer="ones", name="table")
    def call(self, x):
        return torch.nn.functional.embedding(x, self.table.value, sparse=True)

class Model(keras.Model):
    def __init__(self, first):
        super().__init__()
        self.first, self.last = first, L.Dense(4)
    def call(self, x):
        return self.last(self.first(x))

def made(layer, wrap=DistributedOptimizer):
    model = Model(layer)
    model(torch.from_numpy(words))
    model.compile(wrap(keras.optimizers.SGD(0.1)), "mse")
    return model

def fit(model, callbacks):
    model.fit(words, y, batch_size=4, verbose=0, callbacks=callbacks)

class Bag(torch.nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(10, 4, mode="mean", sparse=sparse)
    def forward(self, x):
        return self.bag(x[:, None])

embedding = Wrapper(torch.nn.Embedding(10, 4, sparse=True), name="words")
for name, layer, call in (
    ("embedding", embedding, lambda model: fit(model, distribute([watch]))),
    ("within", Within(Bag(), torch.nn.Linear(4, 4)), lambda model: fit(model, distribute([watch]))),
    ("nested", Model(Within(Bag())), broadcast_variables),
    ("unseen", Unseen(), lambda model: fit(model, distribute([watch]))),
):
    began = []
    watch = keras.callbacks.LambdaCallback(on_train_batch_begin=lambda batch, logs: began.append(batch))
    model = made(layer)
    before = flat(model.get_weights())
    try:
        call(model)
    except PlatoonError as exc:
        worker.report({f"{name} {rank}": f"{type(exc).__name__} at batch {len(began)}: {exc}"})
    else:
        raise AssertionError(name)
    assert name == "unseen" or (flat(model.get_weights()) == before).all()

frozen = Wrapper(torch.nn.Embedding(10, 4, sparse=True))
frozen.trainable = False
for layer in (frozen, Within(Bag(False))):
    fit(made(layer), distribute())
fit(made(Within(Bag()), wrap=lambda optimizer: optimizer), distribute(rule=EASGD()))
"""
    )
    told = outcome.require_success().reported
    for rank in range(2):
        for name, layer in (
            ("embedding", "Embedding in the layer words"),
            ("within", "EmbeddingBag 0.bag in the layer parts"),
            ("nested", "EmbeddingBag 0.bag in the layer parts"),
            ("unseen", "a sparse gradient"),
        ):
            text = told[f"{name} {rank}"]
            assert text.startswith(f"ConfigurationError at batch {int(name == 'unseen')}: "), text
            assert layer in text, text
            assert "sparse=False" in text, text
