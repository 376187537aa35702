"""A Blocks MLP learns scikit-learn's handwritten digits, read through Fuel.

Start it with `platoon launch -n 2 examples/blocks_digits.py` for two workers and asynchronous training, with
`platoon launch -n 2 examples/blocks_digits.py --sync` for averaged gradients, or with
`python examples/blocks_digits.py` alone.
"""

import argparse
import json
import time

from platoon_plugins.blocks import (  # isort: skip
    AllReduceGradients,
    DistributedMonitoring,
    ParameterSync,
    StopTogether,
    shard_stream,
)

import numpy as np
import theano.tensor as T
from blocks.algorithms import Adam, GradientDescent
from blocks.bricks import MLP, Rectifier, Softmax
from blocks.bricks.cost import CategoricalCrossEntropy, MisclassificationRate
from blocks.extensions import FinishAfter, Printing
from blocks.extensions.stopping import FinishIfNoImprovementAfter
from blocks.extensions.training import TrackTheBest
from blocks.graph import ComputationGraph
from blocks.initialization import Constant, IsotropicGaussian
from blocks.main_loop import MainLoop
from blocks.model import Model
from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme, ShuffledScheme
from fuel.streams import DataStream
from sklearn.datasets import load_digits

from platoon_base import connect

BATCH_SIZE = 32
LEARNING_RATE = 1e-3


def load_data():
    """Return data sets to train on, to validate on and to test on: 1,077, 360 and 360 of the 1,797 digits."""
    digits = load_digits()
    images = (digits.data / 16).astype("float32")
    order = np.random.RandomState(0).permutation(len(images))
    return [
        IndexableDataset({"features": images[rows], "targets": digits.target[rows, np.newaxis].astype("int64")})
        for rows in np.split(order, [1077, 1437])
    ]


def build():
    """Return cost and error of a network on the sources of the data."""
    x, y = T.matrix("features"), T.lmatrix("targets")
    mlp = MLP(
        [Rectifier(), Rectifier(), Softmax()],
        [64, 128, 128, 10],
        weights_init=IsotropicGaussian(0.1),
        biases_init=Constant(0),
    )
    probabilities = mlp.apply(x)
    cost = CategoricalCrossEntropy().apply(y.flatten(), probabilities).copy(name="cost")
    error = MisclassificationRate().apply(y.flatten(), probabilities).copy(name="error")
    mlp.initialize()
    return cost, error


def whole(dataset):
    """Return a stream of all rows, in order."""
    return DataStream(dataset, iteration_scheme=SequentialScheme(dataset.num_examples, BATCH_SIZE))


def main(num_epochs=100, patience=10, sync=False, summary=None):
    """Train until the validation error has stopped falling; returns the summary."""
    began = time.monotonic()
    worker = connect()
    train_set, valid_set, test_set = load_data()
    cost, error = build()
    step_rule = AllReduceGradients(Adam(LEARNING_RATE)) if sync else Adam(LEARNING_RATE)
    algorithm = GradientDescent(cost=cost, parameters=ComputationGraph(cost).parameters, step_rule=step_rule)
    stream = DataStream(train_set, iteration_scheme=ShuffledScheme(train_set.num_examples, BATCH_SIZE))
    main_loop = MainLoop(
        algorithm,
        shard_stream(stream, uneven="drop"),
        model=Model(cost),
        extensions=[
            ParameterSync(),
            DistributedMonitoring([cost, error], whole(valid_set), prefix="valid"),
            DistributedMonitoring(
                [error],
                whole(test_set),
                prefix="test",
                before_first_epoch=False,
                after_epoch=False,
                after_training=True,
            ),
            TrackTheBest("valid_error"),
            FinishIfNoImprovementAfter("valid_error_best_so_far", epochs=patience),
            FinishAfter(after_n_epochs=num_epochs),
            StopTogether(),
            Printing(),
        ],
    )
    main_loop.run()

    log = main_loop.log
    result = {
        "test_accuracy": 1.0 - float(log.current_row["test_error"]),
        "valid_error": float(log.status.get("best_valid_error", "nan")),
        "epochs": log.status["epochs_done"],
        "workers": worker.global_size,
        "seconds": round(time.monotonic() - began, 3),
    }
    if worker.is_leader:
        worker.report(result)
        if summary:
            with open(summary, "w") as file:
                json.dump(result, file, indent=2)
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-epochs", type=int, default=100)
    parser.add_argument("--patience", type=int, default=10, help="epochs without improvement that are tolerated")
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    print(json.dumps(main(**vars(parser.parse_args())), indent=2))
