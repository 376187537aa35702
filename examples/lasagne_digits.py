"""A Lasagne network learns scikit-learn's handwritten digits.

Start it with `platoon launch -n 2 examples/lasagne_digits.py` for two workers and asynchronous training, with
`platoon launch -n 2 examples/lasagne_digits.py --sync` for averaged gradients, or with
`python examples/lasagne_digits.py` alone. With `--save digits.npz` the first worker saves the trained network.
"""

import argparse
import json
import time

import numpy as np

from platoon_plugins.lasagne import (  # isort: skip
    StopOnPatience,
    all_reduce_grads,
    evaluate,
    finish_training,
    iterate_minibatches,
    sync_updates,
)

import lasagne
import theano
import theano.tensor as T
from lasagne.layers import (
    Conv2DLayer,
    DenseLayer,
    DropoutLayer,
    InputLayer,
    MaxPool2DLayer,
    ReshapeLayer,
    get_all_param_values,
    get_all_params,
    get_output,
)
from sklearn.datasets import load_digits

from platoon_base import connect

BATCH_SIZE = 32
LEARNING_RATE = 1e-3
PATIENCE = 15


def load_data():
    """Return (images, labels) to train on, to validate on and to test on: 1,077, 360 and 360 of the 1,797 digits."""
    digits = load_digits()
    images = (digits.data / 16).astype(theano.config.floatX)
    labels = digits.target.astype("int32")
    order = np.random.RandomState(0).permutation(len(images))
    return [(images[rows], labels[rows]) for rows in np.split(order, [1077, 1437])]


def build(worker, sync):
    """Compile the training function, in which the workers meet by themselves, and the validation function."""
    x, y = T.matrix("x"), T.ivector("y")
    lasagne.random.set_rng(np.random.RandomState(worker.seed))
    network = ReshapeLayer(InputLayer((None, 64), x), (-1, 1, 8, 8))
    network = Conv2DLayer(network, 32, 3, pad="same")
    network = MaxPool2DLayer(Conv2DLayer(network, 32, 3, pad="same"), 2)
    network = DropoutLayer(DenseLayer(DropoutLayer(network, 0.25), 128), 0.5)
    network = DenseLayer(network, 10, nonlinearity=lasagne.nonlinearities.softmax)
    params = get_all_params(network, trainable=True)

    loss = lasagne.objectives.categorical_crossentropy(get_output(network), y).mean()
    if sync:
        updates = lasagne.updates.adam(all_reduce_grads(loss, params), params, LEARNING_RATE)
        worker.init_shared_params(params)  # never synchronized: a place for checkpoints
    else:
        updates = lasagne.updates.adam(loss, params, LEARNING_RATE)
        updates = sync_updates(updates, params)
    train = theano.function([x, y], loss, updates=updates)

    prediction = get_output(network, deterministic=True)
    error = T.neq(prediction.argmax(axis=1), y).mean(dtype=theano.config.floatX)
    return network, train, theano.function([x, y], error)


def main(num_epochs=500, sync=False, plot="lasagne_digits.png", summary=None, save=None):
    """Train until the validation error has stopped falling; returns the summary."""
    started = time.monotonic()
    worker = connect()
    train_set, valid_set, test_set = load_data()
    network, train, error = build(worker, sync)
    worker.barrier("compiled")
    began = time.monotonic()

    stop = StopOnPatience(PATIENCE, name="valid_error")
    history = []  # rows of (seconds, error of the center, error of each worker's own parameters)
    start = worker.resume_at  # all zeros, but for a job that is resumed or a worker that is started again
    for epoch in range(max(1, start.epoch), num_epochs + 1):
        data = {"shuffle": True, "epoch": epoch, "uneven": "drop", "skip": start.done_in(epoch)}
        for batch in iterate_minibatches(*train_set, BATCH_SIZE, **data):
            train(*batch)
        if sync and worker.is_leader:
            worker.copy_to_global()
        own = worker.reduce_metrics({f"worker {worker.global_rank}": (float(error(*valid_set)), 1.0)})
        center = evaluate(error, *valid_set, batch_size=180)
        history.append((time.monotonic() - began, center, own))
        if stop(center):
            break

    finish_training()  # the network of every worker is the center now
    result = {
        "test_accuracy": 1.0 - evaluate(error, *test_set, batch_size=180),
        "valid_error": stop.best,
        "epochs": epoch,
        "train_seconds": round(time.monotonic() - began, 3),
        "workers": worker.global_size,
        "seconds": round(time.monotonic() - started, 3),
        "stopped_by": stop.reason or f"epochs >= {num_epochs}",
    }
    worker.report({name: result[name] for name in ("test_accuracy", "valid_error", "epochs", "train_seconds")})
    if worker.is_leader:
        if save:
            np.savez(save, *get_all_param_values(network))
        if plot:
            draw(history, plot, "averaged gradients" if sync else "asynchronous")
        if summary:
            with open(summary, "w") as file:
                json.dump(result, file, indent=2)
    return result


def draw(history, path, title):
    """Plot the validation error over time, of the center, if there is one, and of each worker."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

    seconds = [row[0] for row in history]
    figure, axes = plt.subplots(figsize=(7, 4))
    for name in sorted(history[0][2]):
        axes.plot(seconds, [row[2].get(name, np.nan) for row in history], linewidth=0.8, label=name)
    axes.plot(seconds, [row[1] for row in history], color="black", linewidth=1.6, label="center")
    axes.set(xlabel="time of training (s)", ylabel="validation error", yscale="log", title=f"Digits, {title}")
    axes.set_xlim(left=0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # 1 %, 2 %, 5 %, 10 % ...: a decade has few labels else
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=500)
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--plot", default="lasagne_digits.png", help="file for the plot; empty for none")
    parser.add_argument("--save", help="file for the trained network, as get_all_param_values gives it")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    print(json.dumps(main(**vars(parser.parse_args())), indent=2))
