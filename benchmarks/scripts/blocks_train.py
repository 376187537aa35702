"""Run main loops of Blocks without and with the extensions of platoon_plugins.blocks in turn, and write down the times.

    platoon launch -n 2 blocks_train.py FOLDER

Started by benchmarks/blocks_loop.py. All workers run the same main loops at the same time, each on data of its own.
"""

# ruff: noqa: I001 - platoon_plugins.blocks comes before blocks

import argparse
import json
import time
from pathlib import Path

from platoon_plugins.blocks import EASGD, AllReduceGradients, ParameterSync
import numpy as np
import theano.tensor as T
from blocks.algorithms import GradientDescent, Scale
from blocks.bricks import MLP, Rectifier
from blocks.extensions import SimpleExtension, TrainingExtension
from blocks.graph import ComputationGraph
from blocks.initialization import Constant, IsotropicGaussian
from blocks.main_loop import MainLoop
from fuel.datasets import IndexableDataset
from fuel.schemes import SequentialScheme
from fuel.streams import DataStream

from platoon_base import connect

BATCH_SIZE = 32
EVERY, NEVER = 10, 10**9
SETTLING = 10  # batches at the start of a run that are not counted
# The extensions of each way, and whether gradients are averaged; "plain again" shows what is noise.
WAYS = {
    "plain": (lambda: [], False),
    "plain again": (lambda: [], False),
    "extension": (lambda: [ParameterSync(EASGD(), every_n_batches=NEVER)], False),
    "EASGD": (lambda: [ParameterSync(EASGD(), every_n_batches=EVERY)], False),
    "averaged gradients": (lambda: [ParameterSync()], True),
}


class Begins(TrainingExtension):
    """Keeps when each batch began."""

    def before_training(self):
        self.times = []

    def on_resumption(self):
        self.times = []

    def before_batch(self, batch):
        self.times.append(time.perf_counter())


class Pause(SimpleExtension):
    """Ends a run; unlike FinishAfter's, the next one is not over at once."""

    def do(self, which_callback, *args):
        self.main_loop.log.current_row["training_finish_requested"] = True


def make_loop(way, widths, batches):
    """Return a main loop and what keeps its times."""
    extensions, averaged = WAYS[way]
    x, y = T.matrix("x"), T.matrix("y")
    layers = [Rectifier()] * (len(widths) - 2) + [None]
    mlp = MLP(layers, widths, weights_init=IsotropicGaussian(0.02), biases_init=Constant(0))
    cost = ((mlp.apply(x) - y) ** 2).mean().copy(name="cost")
    mlp.initialize()
    rule = AllReduceGradients(Scale(0.01)) if averaged else Scale(0.01)
    algorithm = GradientDescent(cost=cost, parameters=ComputationGraph(cost).parameters, step_rule=rule)
    rng = np.random.RandomState(connect().global_rank)
    rows = BATCH_SIZE * (batches + 7)  # a run that ended with an epoch would end at once the next time
    sources = {"x": widths[0], "y": widths[-1]}
    dataset = IndexableDataset({name: rng.normal(size=(rows, n)).astype("float32") for name, n in sources.items()})
    stream = DataStream(dataset, iteration_scheme=SequentialScheme(rows, BATCH_SIZE))
    begins = Begins()
    return MainLoop(algorithm, stream, extensions=[*extensions(), begins, Pause(every_n_batches=batches)]), begins


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--widths", type=int, nargs="+", default=[1024, 1024, 1024, 512, 10])
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=8)
    options = parser.parse_args()
    worker = connect()
    loops = {way: make_loop(way, options.widths, options.batches) for way in WAYS}
    parameters = loops["plain"][0].algorithm.parameters
    steps = {way: [] for way in WAYS}
    for repeat in range(options.repeats + 1):
        for way, (main_loop, begins) in loops.items():
            worker.barrier("the next way")
            main_loop.run()
            counted = begins.times[SETTLING:]
            if repeat:  # the first one compiles
                steps[way].append((counted[-1] - counted[0]) / (len(counted) - 1) * 1e3)
    result = {"parameters": int(sum(p.get_value().size for p in parameters)), "device": worker.device, "steps": steps}
    (options.folder / f"rank{worker.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
