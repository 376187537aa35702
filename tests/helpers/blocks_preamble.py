"""What the scripts of the Blocks tests begin with: a small network, data for it, and a main loop."""

# ruff: noqa: F401, I001 - for the scripts that follow; platoon_plugins.blocks comes before blocks
import os
import pickle
import signal
import sys

import own_pocl_cache
import numpy as np
from platoon_plugins.blocks import (
    ASGD,
    EASGD,
    CenterMomentum,
    AllReduceGradients,
    DistributedMonitoring,
    DistributedTrainingMonitoring,
    ParameterSync,
    StopTogether,
    register_aggregation,
    shard_stream,
)
import theano
import theano.tensor as T
from blocks.algorithms import Adam, CompositeRule, GradientDescent, Momentum, Scale, StepClipping
from blocks.bricks import MLP, Softmax, Tanh
from blocks.bricks.cost import CategoricalCrossEntropy, MisclassificationRate
from blocks.extensions import FinishAfter, Printing, ProgressBar, SimpleExtension, Timing, TrainingExtension
from blocks.extensions.monitoring import DataStreamMonitoring, TrainingDataMonitoring
from blocks.extensions.saveload import Checkpoint, Load
from blocks.graph import ComputationGraph
from blocks.initialization import Constant, IsotropicGaussian
from blocks.main_loop import MainLoop
from blocks.model import Model
from blocks.monitoring import aggregation
from blocks.serialization import load, load_parameters
from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme, ShuffledScheme
from fuel.streams import DataStream
from platoon_base import connect
from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import prepare
from refusing import raises

tmp = sys.argv[1]
worker = connect()
rank, size = worker.global_rank, worker.global_size


def data(rows, seed=0):
    """Return a data set of so many rows: 6 features and one of 3 classes each."""
    rng = np.random.RandomState(seed)
    x = rng.normal(size=(rows, 6)).astype("float32")
    return IndexableDataset({"features": x, "targets": x[:, :3].argmax(axis=1).astype("int64")[:, None]})


def stream(rows, batch=8, seed=0, shuffled=False):
    """Return a stream of `data`."""
    scheme = ShuffledScheme if shuffled else SequentialScheme
    return DataStream(data(rows, seed), iteration_scheme=scheme(rows, batch))


def network(seed=1, hidden=5):
    """Return cost and error of a small network whose first values follow from a seed."""
    x, y = T.matrix("features"), T.lmatrix("targets")
    mlp = MLP(
        [Tanh(), Softmax()], [6, hidden, 3], weights_init=IsotropicGaussian(0.5), biases_init=Constant(0.1), seed=seed
    )
    probabilities = mlp.apply(x)
    mlp.initialize()
    cost = CategoricalCrossEntropy().apply(y.flatten(), probabilities).copy(name="cost")
    return cost, MisclassificationRate().apply(y.flatten(), probabilities).copy(name="error")


def loop(cost, train, extensions, step_rule=None):
    """Return a main loop; without a step rule that of plain gradient descent."""
    parameters = ComputationGraph(cost).parameters
    algorithm = GradientDescent(cost=cost, parameters=parameters, step_rule=step_rule or Scale(0.1))
    return MainLoop(algorithm, train, model=Model(cost), extensions=extensions)


def trained(*args, **options):
    """Run a main loop to its end and return it."""
    main_loop = loop(*args, **options)
    main_loop.run()
    return main_loop


def values(main_loop):
    """Return the parameters as one vector."""
    return np.concatenate([p.get_value().ravel() for p in main_loop.algorithm.parameters])


def everyones(array):
    """Return the arrays of all workers."""
    return worker.all_gather(np.ascontiguousarray(array))


def same_everywhere(main_loop):
    """Require that a main loop has the same parameters on all workers, and return them."""
    found = values(main_loop)
    assert (everyones(found) == found).all(), everyones(found)
    return found


class Look(TrainingExtension):
    """Calls functions at callbacks: Look(after_batch=f) calls f(main_loop)."""

    def __init__(self, **calls):
        super().__init__()
        self.calls = calls

    def dispatch(self, callback_invoked, *from_main_loop):
        call = self.calls.get(str(callback_invoked))
        if call is not None:
            call(self.main_loop)
