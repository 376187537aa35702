"""Train one of the zoo's networks in Lasagne for some steps, and print images per second and where the time goes.

platoon launch -n 2 zoo_lasagne.py --model alexnet --width 0.1 --image 67 --batch 8
platoon launch -D cuda0 cuda1 zoo_lasagne.py --model resnet50 --rule easgd
python zoo_lasagne.py --model googlenet --data digits --image 32 --width 0.25
"""

import sys

import numpy as np

from platoon_plugins.lasagne import EASGD, all_reduce_grads, finish_training, sync_updates

import lasagne  # isort: skip
import theano
import theano.tensor as T
from lasagne.layers import count_params, get_all_params, get_output
from lasagne_models import MODELS
from zoo_data import load
from zoo_measure import WARM_UP, Measurement, parser, show

from platoon_base import connect
from platoon_base.data import load_ahead

MOMENTUM = 0.9
RECURSION_LIMIT = 20_000  # Theano walks a graph by recursion: ResNet-50 is too deep for Python's 1000


def build(options, shape, classes):
    """Return the network, its inputs, and loss and updates of a step, in which the workers meet."""
    sys.setrecursionlimit(max(RECURSION_LIMIT, sys.getrecursionlimit()))
    x, y = T.tensor4("x"), T.ivector("y")
    network = MODELS[options.model](shape, classes, options.width, x)
    params = get_all_params(network, trainable=True)
    loss = lasagne.objectives.categorical_crossentropy(T.clip(get_output(network), 1e-7, 1), y).mean()
    if options.rule == "bsp":
        updates = lasagne.updates.momentum(all_reduce_grads(loss, params), params, options.rate, MOMENTUM)
    else:
        updates = lasagne.updates.momentum(loss, params, options.rate, MOMENTUM)
        updates = sync_updates(updates, params, **({"rule": EASGD()} if options.rule == "easgd" else {}))
    return network, [x, y], loss, updates


def endless(images, labels, rows, batch):
    """Yield mini-batches of these rows, again and again, all of the same size."""
    while True:
        for begin in range(0, len(rows) - batch + 1, batch):
            taken = rows[begin : begin + batch]
            yield images[taken], labels[taken]


def main(options):
    """Train; returns the measurement."""
    worker = connect()
    rows = 2 * options.batch * worker.global_size
    images, labels, classes = load(options.data, options.image, rows, channels_first=True)
    lasagne.random.set_rng(np.random.RandomState(worker.seed % 2**32))
    network, inputs, loss, updates = build(options, images.shape[1:], classes)
    train = theano.function(inputs, loss, updates=updates)
    measurement = Measurement(worker, options)
    own = worker.shard(len(images), shuffle=True, uneven="drop")
    batches = iter(load_ahead(lambda: endless(images, labels, own, options.batch)))  # by another process
    for step in range(WARM_UP + options.steps):
        if step == WARM_UP:
            measurement.begin()
        loss = train(*next(batches))
        worker.progress(steps=1, loss=loss)  # under plain python the clock runs from the first one on
    measurement.end()
    result = measurement.result(float(loss), count_params(network, trainable=True))
    finish_training()
    show(worker, result, options.summary)
    return result


if __name__ == "__main__":
    main(parser(__doc__, MODELS, image=227).parse_args())
