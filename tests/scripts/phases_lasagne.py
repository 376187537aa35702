"""A training loop whose batches, steps and validations sleep; see phases_keras.py."""

from lasagne_preamble import (
    EASGD,
    Model,
    X,
    Y,
    evaluate,
    iterate_minibatches,
    lasagne,
    np,
    sync_updates,
    theano,
)
from sleeping import report, sleep


class SlowRows:
    """Rows that take 20 ms to read."""

    shape, dtype = X.shape, X.dtype

    def __len__(self):
        return len(X)

    def __getitem__(self, rows):
        if np.size(rows) == 2:  # of a batch, and not of the comparison of the data
            sleep("loading", 0.02)
        return X[rows]


model = Model()
updates = sync_updates(lasagne.updates.sgd(model.loss, model.params, 0.01), model.params, rule=EASGD())
train = theano.function([model.x, model.y], model.loss, updates=updates)
validate = theano.function([model.x, model.y], model.loss)


def slow_validate(x, y):
    sleep("validation", 0.03)
    return validate(x, y)


for epoch in range(3):
    for x, y in iterate_minibatches(SlowRows(), Y, batch_size=2, epoch=epoch):
        sleep("compute", 0.04)
        train(x, y)
    evaluate(slow_validate, X, Y, batch_size=4)
report()
