"""What the workers of one training call compare before each call, and what they do where they differ."""

import importlib.util
import re

import pytest

HERE = importlib.util.find_spec("theano") is not None
WHY = "needs Theano: `make setup` installs it on Python 3.11"
pytestmark = [pytest.mark.theano, pytest.mark.skipif(not HERE, reason=WHY)]


def test_the_first_workers_rows_count_for_all(run_function):
    """Slices, lists and masks, of other kinds and lengths on each worker: rows of a local random choice."""
    run_function(
        """
x = T.fmatrix("x")
f = function([x], x, reduce="gather")
everywhere = np.arange(23)
for step, mine in enumerate([
    slice(rank, rank + 4), slice(rank, None), slice(-3 - rank, None, 1 + rank), [rank, 5, 7][: 3 - rank],
    slice(2, 9) if rank == 0 else [5], [4, 2, 2] if rank == 0 else slice(9, 10), None if rank == 0 else [3],
    everywhere > 15 + rank, [1, 2] if rank == 0 else [99], slice(10**30, None) if rank else slice(-(10**30), 3),
]):
    wanted = slice(None) if mine is None else slice(0, 0) if rank else mine
    firsts = worker.gather(everywhere[wanted].tolist(), name="rows")[0]
    np.testing.assert_array_equal(f(X, batch=mine), X[firsts], str(step))
xs = scatter(X)
g = function([], xs, reduce="gather", sliceable_shareds=[xs])
for mine, first in ((slice(rank, rank + 2), slice(0, 2)), ([3, 1], [3, 1]), ([rank], [0]), (None if rank else [1], [1]),
                    (slice(None, None, 2) if rank == 0 else [1], slice(None, None, 2))):
    np.testing.assert_array_equal(g(batch_s=mine), np.concatenate([X[r::size][first] for r in range(size)]))
""",
        3,
    ).require_success()


def test_inputs_that_differ_from_worker_to_worker_are_refused_on_all(run_function):
    """A learning rate of this worker's own made parameters that differ from then on, without an error."""
    outcome = run_function(
        """
rate, offset = T.fscalar("rate"), T.fvector("offset")
loss = T.sqr(T.dot(ours.x + offset, ours.w) + ours.b - ours.y).mean()
def sgd(grads, params):
    return [(param, param - rate * grad) for param, grad in zip(params, grads)]

train = function([ours.x, ours.y, rate, offset], loss, sgd, params=ours.params, broadcast=[offset])
shuffled = np.random.RandomState(rank).permutation(X)
good = X, Y, np.float32(0.1), np.zeros(3, "f4")
nothing_but_nan = np.full(3, np.nan, "f4")
train(*good)
before = ours.values()
for bad in (
    (X, Y, np.float32(0.1 * (1 + (rank == 1))), good[3]),
    (X, Y, np.float32(0.1), np.eye(3, dtype="f4")[int(rank == 1)]),
    (shuffled, Y, *good[2:]),
    (SharedData(X, "x") if rank else X, *good[1:]),
    (X[: 20 + rank], Y[: 20 + rank], *good[2:]),
    (X, Y[::-1] if rank == 2 else Y, *good[2:]),
):
    try:
        train(*bad)
    except ConfigurationError as exc:
        print("refused:", exc)
np.testing.assert_array_equal(ours.values(), before)
assert np.isfinite(train(*good))
same_everywhere(ours.values())
assert np.isnan(train(*good[:3], nothing_but_nan))  # NaN is the same as NaN
""",
        3,
    ).require_success()
    wanted = [
        "the workers pass different values for input 3, rate: worker 0: 0.1 (float32); worker 1: 0.2 (float32); worker",
        "the workers pass different values for input 4, offset: worker 0: float32 of shape (3,), [1.0, 0.0, 0.0]; w",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (23, 3), [",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (23, 3), [",
        "the workers pass different values for input 1, x: worker 0: float32 of shape (20, 3), [",
        "the workers pass different values for input 2, y: worker 0: float32 of shape (23,), [",
    ]
    for log in outcome.logs:
        found = re.findall("refused: (.*)", log)
        assert len(found) == len(wanted), log
        for line, start in zip(found, wanted):
            assert line.startswith(start), line
            assert "RandomState" in line
    assert "SharedData 'x' of shape (23, 3)" in outcome.logs[0]


def test_a_worker_that_refuses_its_arguments_is_named_to_the_others_at_once(run_function):
    """They waited for it until their deadline, 300 s."""
    outcome = run_function(
        """
xs = scatter(X)
f = function([ours.x, ours.y], ours.loss)
g = function([], xs.sum(), reduce="sum", sliceable_shareds=[xs])
for call in (
    lambda: f(X, Y, batch="all") if rank == 1 else f(X, Y),
    lambda: f(X, Y[:9]) if rank == 2 else f(X, Y),
    lambda: f(X) if rank == 0 else f(X, Y),
    lambda: f(X, 3) if rank == 1 else f(X, Y),
    lambda: f(X, Y, batch=slice(0, 9, 0 if rank else 1)),
    lambda: g(batch_s=[0] if rank else [[0], [1], [2]]),
    lambda: g(batch_s=[[0], [-99], [1]]),
    lambda: g(batch_s=[7]),  # worker 2 has 7 rows
    lambda: f(X, Y) if rank else g(),
):
    try:
        call()
    except Exception as exc:
        print("refused:", type(exc).__name__, exc)
np.testing.assert_allclose(f(X, Y), np.square(X.dot(ours.values()[:3]) + ours.values()[3] - Y).mean(), **close)
np.testing.assert_allclose(g(), X.sum(), **close)
""",
        3,
    ).require_success()
    other = "ConfigurationError worker {} has refused its arguments of this call of a function: {}"
    wanted = [
        (1, "ConfigurationError", "got indices of shape () and dtype <U3"),
        (2, "ConfigurationError", "got inputs of 2 lengths [9, 23]"),
        (0, "ConfigurationError", "got 1 values for 2 inputs"),
        (1, "ConfigurationError", "got int without rows for an input that is scattered"),
        (1, "ValueError", "slice step cannot be zero"),
        (None, "ConfigurationError", "got batch_s for each worker on some workers"),
        (1, "RowIndexError", "got index -99 at position 0"),
        (None, "RowIndexError", "got index 7 at position 0 of the list: there are 7 rows"),
        (None, "ConfigurationError", "the workers call different functions at the same time: worker 0: of inputs [], "),
    ]
    for rank, log in enumerate(outcome.logs):
        found = re.findall("refused: (.*)", log)
        assert len(found) == len(wanted), log
        for line, (refusing, kind, start) in zip(found, wanted):
            own = refusing in (rank, None) or (kind == "ValueError" and rank)
            text = f"{kind} {start}" if own else other.format(refusing, f"{kind}: {start}")
            assert line.startswith(text), line
