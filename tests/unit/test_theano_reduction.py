"""Sums and means over the rows of a mini-batch are told apart in Theano's graphs."""

import numpy as np
import pytest
from needing import require

theano = require("theano")

import lasagne
import theano.tensor as T
from lasagne.layers import DenseLayer, InputLayer, LSTMLayer, dropout, get_output

from platoon_base.theano_ops.reduction import add_up_sums, reduction_of

X, Y = T.matrix("x"), T.ivector("y")
V, M = T.tensor3("v"), T.vector("m")
W = theano.shared(np.ones((3, 2), theano.config.floatX), "W")
P = T.nnet.softmax(X.dot(W))
ROWS = T.nnet.categorical_crossentropy(P, Y)
PENALTY = 1e-3 * T.sqr(W).sum()
SCALE = T.scalar("scale")


def network(layer):
    return get_output(DenseLayer(layer(InputLayer((None, 3), X)), 2))


def normalized():
    """Batch normalization by the statistics of the batch."""
    return (X - X.mean(axis=0)) / T.sqrt(X.var(axis=0) + 1e-4)


def recurrent():
    return get_output(LSTMLayer(InputLayer((None, None, 3), V), 2))


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("mean", lambda: ROWS.mean()),
        ("mean", lambda: T.neq(P.argmax(axis=1), Y).mean(dtype="float32")),
        ("mean", lambda: T.sqr(X).sum(axis=1).mean()),
        ("mean", lambda: T.sqr(X).mean(axis=0).sum()),
        ("mean", lambda: T.sqr(X.T).mean(axis=1).sum()),
        ("mean", lambda: 784 * T.mean(X) + PENALTY),
        ("mean", lambda: T.sqr(X).sum() / X.shape[0]),
        ("mean", lambda: T.sum(ROWS) / T.cast(Y.shape[0], "float32")),
        ("mean", lambda: X.ravel().mean()),
        ("mean", lambda: lasagne.objectives.aggregate(ROWS, mode="mean")),
        ("mean", lambda: T.sqr(normalized()).mean()),
        ("mean", lambda: T.sqr(recurrent()).mean()),
        ("sum", lambda: ROWS.sum()),
        ("sum", lambda: 0.5 * T.sqr(X.dot(W)).sum()),
        ("sum", lambda: -T.sum(ROWS) + T.sum(T.sqr(X))),
        ("sum", lambda: T.sqr(X).mean(axis=1).sum()),
        ("sum", lambda: T.sqr(T.dot(W.T, X.T)).sum()),
        ("mean", lambda: T.sqr(V.dimshuffle(1, 0, 2)).mean()),
        ("sum", lambda: T.sqr(X.T).mean(axis=0).sum()),
        ("mean", lambda: T.sqr(X.T).sum(axis=0).mean()),
        ("sum", lambda: lasagne.objectives.aggregate(ROWS, mode="sum")),
        ("sum", lambda: T.sqr(normalized()).sum()),
        ("sum", lambda: T.sqr(network(dropout)).sum()),
        ("sum", lambda: T.sqr(recurrent()).sum()),
        ("ratio", lambda: lasagne.objectives.aggregate(ROWS, M, mode="normalized_sum")),
        ("constant", lambda: PENALTY),
        ("unknown", lambda: ROWS.sum() + PENALTY),
        ("unknown", lambda: ROWS.sum() + ROWS.mean()),
        ("unknown", lambda: ROWS.sum() / 100),
        ("unknown", lambda: 0.01 * ROWS.sum()),
        ("unknown", lambda: T.sqrt(T.sqr(X).mean())),
        ("unknown", lambda: X.max()),
        # Sums over time and means over the rows, if batches of sequences begin with time.
        ("unknown", lambda: T.sqr(X).sum(axis=0).mean()),
        ("unknown", lambda: T.sqr(X.T).sum(axis=1).mean()),
        ("unknown", lambda: (T.sqr(X) * M).sum() / X.shape[1]),
        # Products of rows with each other.
        ("unknown", lambda: T.sqr(X.T.dot(X)).sum()),
        ("unknown", lambda: T.sqr(X.dot(X.T)).sum()),
        ("unknown", lambda: T.tensordot(X, X, [[0], [0]]).sum()),
        ("unknown", lambda: abs(X.dimshuffle(0, "x", 1) - X.dimshuffle("x", 0, 1)).sum()),
        ("unknown", lambda: X[0, 0]),
        ("unknown", lambda: 1.0),
    ],
)
def test_the_reduction_of_the_rows(kind, make):
    assert reduction_of(make()) == kind


def test_sums_are_added_up_and_the_rest_is_averaged():
    """Against one process with the rows of all: the sum is linear, the mean and the penalty are not to grow."""
    rows = np.random.RandomState(0).normal(size=(8, 3)).astype(theano.config.floatX)

    def loss(x):
        return 0.5 * T.sqr(x.dot(W)).sum() - 3 * T.sqr(x.dot(W)).mean() + PENALTY

    found, kinds = add_up_sums(loss(X), 2)
    assert kinds == {"sum", "mean", "constant"}
    gradient = theano.function([X], theano.grad(found, W))
    one = theano.function([X], theano.grad(loss(X), W))
    np.testing.assert_allclose((gradient(rows[:4]) + gradient(rows[4:])) / 2, one(rows), rtol=1e-5)
