"""Torch's tensors in collectives, and gradients that are averaged as tensors where they are; here on the CPU.

`gpu/test_torch_tensors.py` is about CUDA devices. Tests of other files run with such gradients too, see `both_ways`.
"""

import pytest
from keras_here import AS_TENSORS, keras

torch = pytest.importorskip("torch", reason="needs PyTorch: `make test` runs this file in .venv-keras3")

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


as_tensors = pytest.mark.parametrize("run_keras", [AS_TENSORS], indirect=True)


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


@as_tensors
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


@as_tensors
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


@as_tensors
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
