"""What the extensions of platoon_plugins.blocks add to a batch of a main loop, on 2 workers.

Both workers run the same main loops in turn, each for some batches: without any extension of ours, the same once more
(which shows the noise), with ParameterSync that never synchronizes, with EASGD every 10 batches, and with averaged
gradients. Times are means over the batches of a run, so they contain the synchronizations; each is divided by that of
the plain run of the same round, and the medians over the rounds are shown. Needs Blocks.

    python benchmarks/blocks_loop.py [--devices cuda0 cuda1] [--quick]
"""

# ruff: noqa: I001 - platoon_plugins.blocks comes before blocks

import importlib.util
import time

import harness
import numpy as np

WIDTHS, BATCHES, ROUNDS = [1024, 1024, 1024, 512, 10], 60, 8
BATCH_SIZE, EVERY, NEVER = 32, 10, 10**9
SETTLING = 10  # batches at the start of a run that are not counted


def work(given):
    from platoon_plugins.blocks import EASGD, AllReduceGradients, ParameterSync
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

    class Begins(TrainingExtension):
        def before_training(self):
            self.times = []

        on_resumption = before_training

        def before_batch(self, batch):
            self.times.append(time.perf_counter())

    class Pause(SimpleExtension):
        """Ends a run; unlike FinishAfter's, the next one is not over at once."""

        def do(self, which_callback, *args):
            self.main_loop.log.current_row["training_finish_requested"] = True

    worker = connect()
    widths, batches = given.widths, given.batches

    def make(extensions):
        averaged = "averaged" in extensions
        x, y = T.matrix("x"), T.matrix("y")
        layers = [Rectifier()] * (len(widths) - 2) + [None]
        mlp = MLP(layers, widths, weights_init=IsotropicGaussian(0.02), biases_init=Constant(0))
        cost = ((mlp.apply(x) - y) ** 2).mean().copy(name="cost")
        mlp.initialize()
        rule = AllReduceGradients(Scale(0.01)) if averaged else Scale(0.01)
        algorithm = GradientDescent(cost=cost, parameters=ComputationGraph(cost).parameters, step_rule=rule)
        rng = np.random.RandomState(worker.global_rank)
        rows = BATCH_SIZE * (batches + 7)  # a run that ended with an epoch would end at once the next time
        sources = {"x": widths[0], "y": widths[-1]}
        dataset = IndexableDataset({name: rng.normal(size=(rows, n)).astype("float32") for name, n in sources.items()})
        stream = DataStream(dataset, iteration_scheme=SequentialScheme(rows, BATCH_SIZE))
        begins = Begins()
        ours = [ParameterSync()] if averaged else extensions
        loop = MainLoop(algorithm, stream, extensions=[*ours, begins, Pause(every_n_batches=batches)])

        def run():
            worker.barrier("the next way")
            loop.run()
            counted = begins.times[SETTLING:]
            return (counted[-1] - counted[0]) / (len(counted) - 1)

        return run

    calls = {
        "plain": make([]),
        "plain again": make([]),
        "extension": make([ParameterSync(EASGD(), every_n_batches=NEVER)]),
        "EASGD": make([ParameterSync(EASGD(), every_n_batches=EVERY)]),
        "averaged gradients": make(["averaged"]),
    }
    harness.give(worker.global_rank, harness.interleaved(calls, given.rounds, skip=1))  # the first one compiles


def measure():
    options = harness.options(__doc__, devices=["cpu", "cpu"])
    if importlib.util.find_spec("blocks") is None:
        print("needs Blocks: see tests/README.md, 'Tests and skips'")
        return
    values = {"widths": [64, 64, 10], "batches": 30, "rounds": 2} if options.quick else {}
    values = {"widths": WIDTHS, "batches": BATCHES, "rounds": ROUNDS, **values}
    ranks = harness.job(__file__, values, devices=options.devices)
    rows = harness.compared(harness.slowest(ranks), "plain")
    device = options.devices[0].rstrip("0123456789")
    harness.table(f"Batches of main loops of Blocks on {device}", rows)
    harness.save("blocks_loop" if device == "cpu" else f"blocks_loop-{device}", {"results": rows}, options)


if __name__ == "__main__":
    harness.main(measure, work)
