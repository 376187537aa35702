"""Train a perceptron by a loop on each worker, and by one training call, in turn, and write down the times.

    platoon launch -n 2 function_steps.py FOLDER

Started by benchmarks/function_call.py. All ways train on the same batches, divided over the workers.
"""

# ruff: noqa: I001 - platoon_plugins.lasagne comes before lasagne

import argparse
import json
import time
from pathlib import Path

from platoon_plugins.lasagne import all_reduce_grads, function, scatter
import lasagne
import numpy as np
import theano
import theano.tensor as T
from lasagne.layers import DenseLayer, InputLayer, get_all_params, get_output

from platoon_base import connect
from platoon_base.data import SharedData
from platoon_base.sharding import shard_bounds

ROWS, INPUTS, UNITS = 20_000, 784, 256
SETTLING = 3  # steps at the start of a run that are not counted
RATE = 0.01


class Network:
    """A perceptron of its own for each way, with the same first values."""

    def __init__(self):
        lasagne.random.set_rng(np.random.RandomState(0))
        self.x, self.y = T.matrix("x"), T.ivector("y")
        layer = DenseLayer(DenseLayer(InputLayer((None, INPUTS)), UNITS), UNITS)
        self.layer = DenseLayer(layer, 10, nonlinearity=lasagne.nonlinearities.softmax)
        self.params = get_all_params(self.layer, trainable=True)

    def loss(self, x, y):
        return lasagne.objectives.categorical_crossentropy(get_output(self.layer, x), y).mean()


def sgd(grads, params):
    return lasagne.updates.sgd(grads, params, RATE)


def make_ways(worker, x, y):
    """Return a function of the rows of a batch for each way; the first two take this worker's part themselves."""

    def part(rows):
        start, stop = shard_bounds(len(rows), worker.global_rank, worker.global_size)
        return rows[start:stop]

    def loop():
        net = Network()
        loss = net.loss(net.x, net.y)
        train = theano.function([net.x, net.y], loss, updates=sgd(all_reduce_grads(loss, net.params), net.params))
        return lambda rows: train(x[part(rows)], y[part(rows)])

    def call():
        net = Network()
        train = function([net.x, net.y], net.loss(net.x, net.y), sgd, params=net.params)
        data = SharedData(x, "x"), SharedData(y, "y")
        return lambda rows: train(*data, batch=rows)

    def averaged_values():
        net = Network()
        loss = net.loss(net.x, net.y)
        train = function([net.x, net.y], loss, lasagne.updates.sgd(loss, net.params, RATE))
        data = SharedData(x, "x"), SharedData(y, "y")
        return lambda rows: train(*data, batch=rows)

    def resident():
        net = Network()
        own = scatter(x, "x"), scatter(y, "y")
        loss = net.loss(own[0], T.cast(own[1], "int32"))
        train = function([], loss, sgd, params=net.params, sliceable_shareds=list(own))
        return lambda rows: train(batch_s=rows[: len(rows) // worker.global_size] // worker.global_size)

    return {
        "a loop on each worker": loop(),
        "the same once more": loop(),
        "function": call(),
        "function, new values averaged": averaged_values(),
        "function, data in own memory": resident(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=11)
    options = parser.parse_args()
    worker = connect()
    rng = np.random.RandomState(0)
    x, y = rng.rand(ROWS, INPUTS).astype("float32"), rng.randint(10, size=ROWS).astype("int32")
    ways = make_ways(worker, x, y)
    steps = {size: {way: [] for way in ways} for size in options.batch_sizes}
    for repeat in range(options.repeats + 1):
        for size, times in steps.items():
            for way, train in ways.items():
                batches = [rng.randint(ROWS, size=size) for _ in range(options.steps + SETTLING)]
                for rows in batches[:SETTLING]:
                    train(rows)
                began = time.perf_counter()
                for rows in batches[SETTLING:]:
                    train(rows)
                if repeat:  # the first one compiles
                    times[way].append((time.perf_counter() - began) / options.steps * 1e3)
    result = {"device": worker.device, "workers": worker.global_size, "steps": steps}
    (options.folder / f"rank{worker.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
