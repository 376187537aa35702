"""A Blocks LSTM learns to tell which of two Markov chains made a sequence, read through Fuel.

Start it with `platoon launch -n 2 examples/blocks_sequences.py` for two workers and asynchronous training, with
`platoon launch -n 2 examples/blocks_sequences.py --sync` for averaged gradients, or with
`python examples/blocks_sequences.py` alone.
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
from blocks.algorithms import Adam, CompositeRule, GradientDescent, StepClipping
from blocks.bricks import MLP, Softmax
from blocks.bricks.cost import CategoricalCrossEntropy, MisclassificationRate
from blocks.bricks.lookup import LookupTable
from blocks.bricks.recurrent import LSTM
from blocks.extensions import FinishAfter, Printing, Timing
from blocks.extensions.training import TrackTheBest
from blocks.graph import ComputationGraph
from blocks.initialization import Constant, IsotropicGaussian
from blocks.main_loop import MainLoop
from blocks.model import Model
from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme, ShuffledScheme
from fuel.streams import DataStream
from fuel.transformers import Mapping

from platoon_base import connect

# Three symbols lie on a circle; a row for each chain: the probabilities that the next symbol is that of LAG steps ago,
# its successor, or its predecessor. Neighbours are independent of each other: what tells the chains apart has to be
# remembered. Who knows these probabilities is right for 98.7 % of the sequences to test on.
STEPS = np.array([[0.2, 0.6, 0.2], [0.2, 0.2, 0.6]])
LAG = 2
LENGTH = 24
HIDDEN = 32
BATCH_SIZE = 32
LEARNING_RATE = 5e-3
MAX_NORM = 1.0
SYNC_EVERY = 5


def load_data():
    """Return data sets to train on, to validate on and to test on: 3,200, 640 and 640 sequences and their chains."""
    rng = np.random.RandomState(0)
    count = 3200 + 640 + 640
    chains = rng.randint(len(STEPS), size=count)
    limits = STEPS.cumsum(axis=1)[chains, np.newaxis]
    moves = (rng.uniform(size=(count, LENGTH, 1)) > limits).sum(axis=2).reshape(count, -1, LAG)
    symbols = (rng.randint(3, size=(count, 1, LAG)) + moves.cumsum(axis=1)).reshape(count, LENGTH) % 3
    return [
        IndexableDataset({"symbols": symbols[rows], "chains": chains[rows, np.newaxis]})
        for rows in np.split(np.arange(count), [3200, 3840])
    ]


def build():
    """Return cost and error of a network on the sources of the data, with time first."""
    symbols, y = T.lmatrix("symbols"), T.lmatrix("chains")
    lookup = LookupTable(3, 4 * HIDDEN, weights_init=IsotropicGaussian(0.1))
    lstm = LSTM(HIDDEN, weights_init=IsotropicGaussian(0.1))
    mlp = MLP([Softmax()], [HIDDEN, 2], weights_init=IsotropicGaussian(0.1), biases_init=Constant(0))
    states, _ = lstm.apply(lookup.apply(symbols))
    probabilities = mlp.apply(states[-1])
    cost = CategoricalCrossEntropy().apply(y.flatten(), probabilities).copy(name="cost")
    error = MisclassificationRate().apply(y.flatten(), probabilities).copy(name="error")
    for brick in (lookup, lstm, mlp):
        brick.initialize()
    return cost, error


def time_first(batch):
    """Turn the symbols of a batch from one row for each sequence to one for each point in time."""
    symbols, chains = batch
    return symbols.T, chains


def batches(dataset, scheme):
    """Return a stream of all sequences."""
    return Mapping(DataStream(dataset, iteration_scheme=scheme(dataset.num_examples, BATCH_SIZE)), time_first)


def main(num_epochs=20, sync=False, summary=None):
    """Train for so many epochs; returns the summary."""
    began = time.monotonic()
    worker = connect()
    train_set, valid_set, test_set = load_data()
    cost, error = build()
    rules = [StepClipping(MAX_NORM), Adam(LEARNING_RATE)]
    algorithm = GradientDescent(
        cost=cost,
        parameters=ComputationGraph(cost).parameters,
        step_rule=CompositeRule([AllReduceGradients(), *rules] if sync else rules),
    )
    main_loop = MainLoop(
        algorithm,
        shard_stream(batches(train_set, ShuffledScheme), uneven="drop"),
        model=Model(cost),
        extensions=[
            ParameterSync(every_n_batches=SYNC_EVERY),
            DistributedMonitoring([cost, error], batches(valid_set, SequentialScheme), prefix="valid"),
            DistributedMonitoring(
                [error],
                batches(test_set, SequentialScheme),
                prefix="test",
                before_first_epoch=False,
                after_epoch=False,
                after_training=True,
            ),
            TrackTheBest("valid_error"),
            FinishAfter(after_n_epochs=num_epochs),
            StopTogether(),
            Timing(),
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
    parser.add_argument("--num-epochs", type=int, default=20)
    parser.add_argument("--sync", action="store_true", help="average gradients in each step")
    parser.add_argument("--summary", help="file for the summary, as JSON")
    print(json.dumps(main(**vars(parser.parse_args())), indent=2))
