"""A step by one training call (`function`) against the same step in a loop on each worker, on 1 and 2 workers.

A perceptron 784-256-256-10 learns by averaged gradients. The loop on each worker takes its part of a list of rows by
NumPy, calls the compiled function, and has a loss of its own; `function` excerpts, calls, and has the loss of all. All
ways run in turn in the same processes; each time is divided by that of the loop in the same round, and the medians over
the rounds are shown. Needs Theano and Lasagne.

    python benchmarks/function_call.py [--devices cuda0 cuda1] [--quick]
"""

# ruff: noqa: I001 - platoon_plugins.lasagne comes before lasagne

import time

import harness
import numpy as np

ROWS, INPUTS, UNITS, RATE = 20_000, 784, 256, 0.01
BATCH_SIZES = (64, 512)
SETTLING = 3  # steps at the start of a run that are not counted
LOOP = "a loop on each worker"


def work(given):
    from platoon_plugins.lasagne import all_reduce_grads, function, scatter
    import lasagne
    import theano
    import theano.tensor as T
    from lasagne.layers import DenseLayer, InputLayer, get_all_params, get_output

    from platoon_base import connect
    from platoon_base.data import SharedData
    from platoon_base.sharding import shard_bounds

    worker, rng = connect(), np.random.RandomState(0)
    x, y = rng.rand(ROWS, INPUTS).astype("float32"), rng.randint(10, size=ROWS).astype("int32")

    def network(inputs=None, labels=None):
        lasagne.random.set_rng(np.random.RandomState(0))
        inputs, labels = (T.matrix("x"), T.ivector("y")) if inputs is None else (inputs, labels)
        layer = DenseLayer(DenseLayer(InputLayer((None, INPUTS)), UNITS), UNITS)
        layer = DenseLayer(layer, 10, nonlinearity=lasagne.nonlinearities.softmax)
        loss = lasagne.objectives.categorical_crossentropy(get_output(layer, inputs), labels).mean()
        return [inputs, labels], loss, get_all_params(layer, trainable=True)

    def sgd(grads, params):
        return lasagne.updates.sgd(grads, params, RATE)

    def loop():
        given_to, loss, params = network()
        train = theano.function(given_to, loss, updates=sgd(all_reduce_grads(loss, params), params))

        def step(rows):  # it takes this worker's part itself
            start, stop = shard_bounds(len(rows), worker.global_rank, worker.global_size)
            train(x[rows[start:stop]], y[rows[start:stop]])

        return step

    def call(averages_values):
        given_to, loss, params = network()
        if averages_values:
            train = function(given_to, loss, sgd(loss, params))
        else:
            train = function(given_to, loss, sgd, params=params)
        data = SharedData(x, "x"), SharedData(y, "y")
        return lambda rows: train(*data, batch=rows)

    def resident():
        own = scatter(x, "x"), scatter(y, "y")
        _, loss, params = network(own[0], T.cast(own[1], "int32"))
        train = function([], loss, sgd, params=params, sliceable_shareds=list(own))
        return lambda rows: train(batch_s=rows[: len(rows) // worker.global_size] // worker.global_size)

    ways = {LOOP: loop(), "the same once more": loop(), "function": call(False)}
    ways |= {"function, new values averaged": call(True), "function, data in own memory": resident()}

    def run(train, size):
        batches = [rng.randint(ROWS, size=size) for _ in range(given.steps + SETTLING)]
        for number, rows in enumerate(batches):
            if number == SETTLING:
                began = time.perf_counter()
            train(rows)
        return (time.perf_counter() - began) / given.steps

    calls = {f"{size} {way}": lambda t=train, s=size: run(t, s) for size in BATCH_SIZES for way, train in ways.items()}
    harness.give(worker.global_rank, harness.interleaved(calls, given.rounds, skip=1))  # the first one compiles


def measure():
    options = harness.options(__doc__, devices=[])
    rows = []
    for devices in [options.devices] if options.devices else [["cpu"], ["cpu", "cpu"]]:
        values = {"steps": 3, "rounds": 3} if options.quick else {"steps": 15, "rounds": 11}
        times = harness.slowest(harness.job(__file__, values, devices=devices))
        for size in map(str, BATCH_SIZES):
            mine = {name.partition(" ")[2]: taken for name, taken in times.items() if name.startswith(f"{size} ")}
            rows += harness.compared(mine, LOOP, workers=len(devices), batch=int(size))
    harness.table("Steps of a perceptron", rows)
    harness.save("function_call" + ("-devices" if options.devices else ""), {"results": rows}, options)


if __name__ == "__main__":
    harness.main(measure, work)
