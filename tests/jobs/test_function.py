"""One training call for all workers, against plain Theano on all rows in one process."""

import importlib.util
import re

import pytest

HERE = importlib.util.find_spec("theano") is not None
WHY = "needs Theano: `make setup` installs it on Python 3.11"
pytestmark = [pytest.mark.theano, pytest.mark.skipif(not HERE, reason=WHY)]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_training_is_that_of_one_process_on_all_rows(run_function, workers):
    """Also with a last batch of fewer rows than workers, and with lists that only the first worker has so."""
    run_function(
        """
single = theano.function([alone.x, alone.y], alone.loss, updates=adagrad(alone.loss, alone.params))
train = function([ours.x, ours.y], ours.loss, adagrad, params=ours.params)
shared = [SharedData(X, "x"), SharedData(Y, "y")]
for step in range(12):
    order = np.random.RandomState([step, rank]).permutation(23)  # differs from worker to worker
    first = np.random.RandomState([step, 0]).permutation(23)
    count = [8, 7, 2, 1][step % 4]
    found = train(*(shared if step % 2 else [X, Y]), batch=list(order[:count]))
    wanted = single(X[first[:count]], Y[first[:count]])
    np.testing.assert_allclose(found, wanted, **close)
    np.testing.assert_allclose(ours.values(), alone.values(), **close)
    same_everywhere(found, ours.values())
for batch in (slice(3, 10), slice(None), slice(20, 1, -3), None, np.arange(23) > 15, 9, np.int64(23)):
    rows = slice(None) if batch is None else slice(batch) if isinstance(batch, (int, np.integer)) else batch
    np.testing.assert_allclose(train(X, Y, batch=batch), single(X[rows], Y[rows]), **close)
np.testing.assert_allclose(ours.values(), alone.values(), **close)
assert found.shape == () and found.dtype == np.float32
""",
        workers,
    ).require_success()


def test_new_values_are_averaged_where_updates_are_given(run_function):
    """Momentum is linear in the gradients, so its averages are exact; an integer counts on as it is."""
    run_function(
        """
def updates(model):
    count = theano.shared(np.int64(0), "count")
    return momentum(model.loss, model.params) + [(count, count + 1)], count

mine, count = updates(ours)
single = theano.function([alone.x, alone.y], alone.loss, updates=updates(alone)[0])
train = function([ours.x, ours.y], ours.loss, dict(mine))
for start in range(0, 20, 5):
    rows = slice(start, start + 5)
    np.testing.assert_allclose(train(X, Y, batch=rows), single(X[rows], Y[rows]), **close)
    np.testing.assert_allclose(ours.values(), alone.values(), **close)
same_everywhere(ours.values())
assert count.get_value() == 4
""",
        2,
    ).require_success()


def test_gradients_that_are_averaged_already_stay_as_they_are(run_function):
    run_function(
        """
from platoon_base.theano_ops import all_reduce
grads = all_reduce(*theano.grad(ours.loss, ours.params), op="mean")
train = function([ours.x, ours.y], ours.loss, adagrad(grads, ours.params))
single = theano.function([alone.x, alone.y], alone.loss, updates=adagrad(alone.loss, alone.params))
for step in range(3):
    np.testing.assert_allclose(train(X[:8], Y[:8]), single(X[:8], Y[:8]), **close)
np.testing.assert_allclose(ours.values(), alone.values(), **close)
""",
        2,
    ).require_success()


def test_a_loss_that_is_a_sum_and_an_input_for_all(run_function):
    run_function(
        """
scale, offset = T.fscalar("scale"), T.fvector("offset")
def parts(model):
    return scale * T.sqr(T.dot(model.x + offset, model.w) + model.b - model.y).sum()

loss = parts(alone)
single = theano.function([alone.x, alone.y, scale, offset], loss, updates=adagrad(loss, alone.params))
train = function([ours.x, ours.y, scale, offset], [parts(ours), scale], adagrad, params=ours.params, average=False,
                 reduce=["sum", None], broadcast=[offset])
for rows in (slice(0, 9), slice(9, 10), slice(10, 23)):
    found = train(X, Y, np.float32(0.01), np.ones(3, "f4"), batch=rows)
    np.testing.assert_allclose(found[0], single(X[rows], Y[rows], np.float32(0.01), np.ones(3, "f4")), **close)
    assert len(found) == 2 and found[1] == np.float32(0.01)
np.testing.assert_allclose(ours.values(), alone.values(), **close)
""",
        2,
    ).require_success()


@pytest.mark.parametrize("workers", [1, 3])
def test_outputs_of_all_reductions_and_in_slices(run_function, workers):
    run_function(
        """
x = T.fmatrix("x")
outputs = [x.mean(0), x.sum(0), x.max(), x.min(), x, T.gt(x, 0), T.gt(x, 0).sum(), x.shape[0]]
reduce = ["mean", "sum", "max", "min", "gather", "gather", "sum", None]
f = function([x], outputs, reduce=reduce)
g = function([x], (1 + x / 9).prod(), reduce="*")
for count in (1, 2, 7, 23):
    for num_slices in (1, 2, 5, 50):
        a = X[:count]
        found = f(a, num_slices=num_slices)
        for value, wanted in zip(found, [a.mean(0), a.sum(0), a.max(), a.min(), a, a > 0, (a > 0).sum()]):
            np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)
            assert value.dtype == np.asarray(wanted).dtype and value.shape == np.shape(wanted)
        bounds = count * rank // size, count * (rank + 1) // size
        if num_slices == 1:
            assert found[-1] == max(1, bounds[1] - bounds[0])
        same_everywhere(*[value.view("u1") if value.dtype == bool else value for value in found[:-1]])
    np.testing.assert_allclose(g(a), (1 + a / 9).prod(), rtol=1e-4)
np.testing.assert_allclose(f(X, batch=[5, 3, 3], num_slices=2)[4], X[[5, 3, 3]])
np.testing.assert_allclose(f(SharedData(X), batch=slice(1, 20, 3))[4], X[1:20:3])
np.testing.assert_allclose(f(np.asfortranarray(X), batch=[5, 3, 8])[4], X[[5, 3, 8]])
""",
        workers,
    ).require_success()


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_data_that_lie_in_the_memory_of_each_worker(run_function, workers):
    """Worker r has the rows r, r + N, ...; batch_s selects among them."""
    run_function(
        """
def resident(model, x, y):
    return T.sqr(T.dot(x, model.w) + model.b - y).mean()

xs, ys = scatter(SharedData(X), "xs"), scatter(Y, "ys", dtype="f4")
assert xs.get_value().shape[0] == len(X[rank::size])
loss = resident(ours, xs, ys)
train = function([], loss, adagrad, params=ours.params, sliceable_shareds=[xs, ys])
rows_out = function([], xs, reduce="gather", sliceable_shareds=[xs])
single = theano.function([alone.x, alone.y], alone.loss, updates=adagrad(alone.loss, alone.params))
shortest = len(X) // size
lists = [np.random.RandomState(r).permutation(len(X[r::size]))[: 3 + r] for r in range(size)]
own = [lists[r] if r == rank else np.zeros(1, int) for r in range(size)]  # what others pass for themselves counts
slices = [slice(r, 4) for r in range(size)]
for batch_s in (slice(1, 5), 3, None, [0, 4, 2], slice(6, None), lists, own, slices, [-1, 2]):
    selected = []
    for r in range(size):
        mine = lists[r] if batch_s is own else batch_s
        if isinstance(mine, list) and not np.isscalar(mine[0]):
            mine = mine[r]
        mine = slice(mine) if mine is None or isinstance(mine, int) else mine
        selected.append((X[r::size][mine], Y[r::size][mine]))
    a, b = (np.concatenate(arrays) for arrays in zip(*selected))
    np.testing.assert_allclose(train(batch_s=batch_s), single(a, b), **close)
    np.testing.assert_allclose(ours.values(), alone.values(), **close)
    for num_slices in (1, 3):
        np.testing.assert_array_equal(rows_out(batch_s=batch_s, num_slices=num_slices), a)
one_for_all = [2, 0, 1] if rank == 0 else [1, 1, 1]
wanted = np.concatenate([X[r::size][[2, 0, 1]] for r in range(size)])
np.testing.assert_array_equal(rows_out(batch_s=one_for_all), wanted)
evaluate = function([], loss, sliceable_shareds=[xs, ys])
whole = np.square(X.dot(ours.values()[:3]) + ours.values()[3] - Y).mean()
for num_slices in (1, 4, 100):
    np.testing.assert_allclose(evaluate(num_slices=num_slices), whole, **close)
none_here = [slice(0, 0)] * (size - 1) + [slice(0, 2)]
np.testing.assert_array_equal(rows_out(batch_s=none_here), X[size - 1 :: size][:2])
""",
        workers,
    ).require_success()


@pytest.mark.parametrize("workers", [1, 2])
def test_data_sets_and_values_take_the_place_of_inputs_by_givens(run_function, workers):
    """As in one process: ``givens`` put the data sets, indexed by the call, where the model has inputs."""
    run_function(
        """
scale = T.fscalar("scale")
xs, ys = scatter(X, "xs"), scatter(Y.astype("f8"), "ys")
loss = ours.loss * scale
givens = {ours.x: xs, ours.y: T.cast(ys, "float32"), scale: np.float32(0.5)}
train = function([], loss, adagrad, params=ours.params, givens=givens, sliceable_shareds=[xs, ys])
mine = function([scale], [loss, ours.x], givens=list(givens.items())[:2], reduce=["mean", "gather"],
                sliceable_shareds=[xs, ys])
single = theano.function([alone.x, alone.y], alone.loss * np.float32(0.5),
                         updates=adagrad(alone.loss * np.float32(0.5), alone.params))
for batch_s in (slice(1, 5), [0, 4, 2], None, 6):
    chosen = slice(batch_s) if batch_s is None or isinstance(batch_s, int) else batch_s
    a, b = (np.concatenate([data[r::size][chosen] for r in range(size)]) for data in (X, Y))
    np.testing.assert_allclose(train(batch_s=batch_s), single(a, b), **close)
    np.testing.assert_allclose(ours.values(), alone.values(), **close)
    found, rows = mine(np.float32(3), batch_s=batch_s)
    np.testing.assert_array_equal(rows, a)
    np.testing.assert_allclose(found, 3 * np.square(a.dot(ours.values()[:3]) + ours.values()[3] - b).mean(), **close)
# Without data sets.
halved = function([ours.x, ours.y], ours.error.mean() * scale, givens={scale: theano.shared(np.float32(0.5))})
np.testing.assert_allclose(halved(X, Y), single(X, Y), **close)
try:
    function([], ours.loss, givens=[ours.x])
except ConfigurationError as exc:
    assert "got givens=[x]: pass a mapping" in str(exc), exc
else:
    raise AssertionError("a list without pairs was taken")
""",
        workers,
    ).require_success()


def test_a_worker_without_rows_adds_nothing_to_any_reduction(run_function):
    """Rank 0 selects no row. What it computes to tell shapes, from its first row of 100, is in no output."""
    run_function(
        """
for dtype in ("float32", "float64", "int32", "int64", "uint8"):
    rows = np.array([100, 1, 2, 3, 50, 4] if dtype != "uint8" else [0, 6, 200, 3, 255, 4], dtype)
    xs = scatter(rows)
    outputs = [xs.max(), xs.min(), xs.prod(dtype=dtype), xs.sum(dtype=dtype), xs]
    f = function([], outputs, reduce=["max", "min", "prod", "sum", "gather"], sliceable_shareds=[xs])
    for batch_s in ([[], [1, 2]], [slice(0, 0), slice(1, 3)]):
        selected = rows[[3, 5]]
        wanted = [selected.max(), selected.min(), selected.prod(), selected.sum(), selected]
        for found, value in zip(f(batch_s=batch_s), wanted):
            np.testing.assert_array_equal(found, value)
            assert found.dtype == dtype
x = T.fvector("x")
f = function([x], [x.prod(), -x.max(), -x.min()], reduce=["prod", "max", "min"])
np.testing.assert_array_equal(f(np.float32([7])), [7, -7, -7])
""",
        2,
    ).require_success()


def test_running_statistics_and_noise(run_function):
    """A default update is averaged, as one of all rows; noise differs from worker to worker."""
    run_function(
        """
from theano.sandbox.rng_mrg import MRG_RandomStreams
noise = MRG_RandomStreams(rank + 5).uniform((4,))
x = T.fmatrix("x")
mean = theano.shared(np.zeros(3, "f4") + rank, "mean")
running = theano.clone(mean, share_inputs=False)
running.default_update = 0.5 * running + 0.5 * x.mean(0)
f = function([x], [(x - 0 * running).sum(), noise], reduce=["sum", None])
wanted = np.zeros(3, "f4")
seen = []
for rows in (slice(0, 5), slice(5, 6), slice(6, 23)):
    seen.append(f(X, batch=rows)[1])
    wanted = 0.5 * wanted + 0.5 * X[rows].mean(0)
    np.testing.assert_allclose(mean.get_value(), wanted, **close)
draws = worker.all_gather(np.array(seen)).reshape(-1, 4)
assert len(np.unique(draws, axis=0)) == len(draws)
""",
        2,
    ).require_success()


def test_noise_for_rows_of_resident_data_is_drawn_for_those_rows_alone(run_function):
    """Draws for the whole data set, which only the random stream's state shows, took minutes an epoch."""
    run_function(
        """
from theano.sandbox.rng_mrg import MRG_RandomStreams
x, xs = T.fmatrix("x"), scatter(X)
def noisy(data):
    return data + MRG_RandomStreams(5).uniform(data.shape)

plain = theano.function([x], noisy(x))
resident = function([], noisy(xs), reduce="gather", sliceable_shareds=[xs])
for rows in ([0], slice(2, 4), [3, 1, 5], slice(0, 7)):
    np.testing.assert_array_equal(resident(batch_s=rows), plain(X[rows]))
""",
        1,
    ).require_success()


def test_a_wrong_index_is_told_on_every_worker_and_all_go_on(run_function):
    outcome = run_function(
        """
xs = scatter(X)
f = function([ours.x, ours.y], ours.loss)
g = function([], xs.sum(), reduce="sum", sliceable_shareds=[xs])
for call in (
    lambda: f(X, Y, batch=[3, 23, 5]),
    lambda: f(X, Y[:9]),
    lambda: f(X, Y, batch=[]),
    lambda: f(X),
    lambda: f(X, Y, batch_s=[1]),
    lambda: g(batch=[1]),
    lambda: g(batch_s=[99]),
    lambda: g(batch_s=[[0], [-99]]),
    lambda: g(batch_s=[[0]]),
    lambda: g(num_slices=0),
    lambda: f(X, Y, batch=24),
    lambda: g(batch_s=-1),
):
    try:
        call()
    except PlatoonError as exc:
        print("refused:", type(exc).__name__, exc)
train = function([ours.x, ours.y], ours.loss, adagrad, params=ours.params)
try:
    train(X, Y, num_slices=2)
except ConfigurationError as exc:
    print("refused:", type(exc).__name__, exc)
np.testing.assert_allclose(f(X, Y), np.square(X.dot(ours.values()[:3]) + ours.values()[3] - Y).mean(), **close)
np.testing.assert_allclose(g(), X.sum(), **close)
""",
        2,
    ).require_success()
    wanted = [
        "RowIndexError got index 23 at position 1 of the list: there are 23 rows",
        "ConfigurationError got inputs of 2 lengths [9, 23]",
        "ConfigurationError got no rows: batch selects none of 23",
        "ConfigurationError got 1 values for 2 inputs",
        "ConfigurationError got batch_s, and the function has no data sets",
        "ConfigurationError got batch, and no input is scattered",
        "RowIndexError got index 99 at position 0",
        ["ConfigurationError worker 1 has refused its arguments", "RowIndexError got index -99 at position 0"],
        "ConfigurationError got batch_s of 1 lists for 2 workers",
        "ConfigurationError got num_slices=0",
        "RowIndexError got the number 24 as rows, which stands for so many first ones: there are 23",
        "RowIndexError got the number -1 as rows",
        "ConfigurationError got num_slices=2 for a function with updates",
    ]
    for rank, log in enumerate(outcome.logs):
        found = re.findall("refused: (.*)", log)
        assert len(found) == len(wanted), log
        for line, start in zip(found, wanted):
            assert line.startswith(start if isinstance(start, str) else start[rank]), line


def test_arguments_that_cannot_work_are_refused(run_function):
    outcome = run_function(
        """
for make in (
    lambda: function([ours.x, ours.y], ours.error, adagrad, params=ours.params),
    lambda: function([ours.x, ours.y], ours.loss, adagrad),
    lambda: function([ours.x, ours.y], ours.loss, [(3, 4)]),
    lambda: function([ours.x, ours.y], ours.loss, reduce="median"),
    lambda: function([ours.x, ours.y], ours.loss, reduce=["mean", "sum"]),
    lambda: function([ours.x], ours.x, sliceable_shareds=ours.w),
    lambda: function([ours.x], ours.x.sum(), broadcast=[ours.y]),
    lambda: scatter(X[:0]),
    lambda: function([ours.x], ours.x.sum(0), reduce="gather")(X),
):
    try:
        make()
    except ConfigurationError as exc:
        print("refused:", exc)
""",
        1,
    ).require_success()
    found = re.findall("refused: (.*)", outcome.logs[0])
    for line, start in zip(
        found,
        [
            "got TensorType(float32, vector) as the loss", "got params=None for updates that are a function",
            "got (3, 4) in updates", "got ", "got 2 reductions for 1 outputs", "got sliceable_shareds=",
            "got broadcast=[y]", "got 0 rows for 1 workers", "got output 0 of shape (3,) from 23 rows",
        ],
    ):  # fmt: skip
        assert line.startswith(start), line
    assert len(found) == 9


def test_other_graphs_on_other_workers_are_refused_on_all(run_function):
    outcome = run_function(
        """
other = theano.shared(np.zeros(4 + rank, "f4"), "other")
try:
    function([ours.x], ours.x.sum() + other.sum())
except LayoutMismatchError as exc:
    print("refused:", exc)
""",
        2,
    ).require_success()
    assert all("refused: " in log for log in outcome.logs)


def test_a_worker_that_dies_ends_the_call_of_the_others(run_function):
    outcome = run_function(
        """
train = function([ours.x, ours.y], ours.loss, adagrad, params=ours.params)
for step in range(100):
    if step == 5 and rank == 1:
        os.kill(os.getpid(), 9)
    try:
        train(X, Y)
    except Exception as exc:
        print("ended in step", step, type(exc).__name__)
        break
""",
        2,
    )
    assert "ended in step 5" in outcome.logs[0]
