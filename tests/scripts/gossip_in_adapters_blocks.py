"""The learning rate is 0: what both moved by before they first synchronized, each with half of the weight, stays."""

from blocks_preamble import DistributedMonitoring, FinishAfter, Look, ParameterSync, Scale
from blocks_preamble import everyones, loop, network, np, rank, shard_stream, stream, values, worker
from platoon_plugins.blocks import GoSGD

cost, error = network()
begun, seen = [], []


def begin(main_loop):
    if not begun:
        for parameter in main_loop.algorithm.parameters:
            begun.append(parameter.get_value())
            parameter.set_value(begun[-1] + np.asarray(rank + 1, begun[-1].dtype))


def look(main_loop):
    seen.append(main_loop.log.current_row["valid_cost"])


extensions = [
    DistributedMonitoring([cost], stream(40, seed=1), prefix="valid", before_first_epoch=False),
    Look(before_batch=begin, after_epoch=look),
    ParameterSync(GoSGD(probability=0.5), every_n_batches=1),
    FinishAfter(after_n_epochs=3),
]
main_loop = loop(cost, shard_stream(stream(64)), extensions, Scale(0.0))
main_loop.run()
ends = everyones(values(main_loop))
assert (ends[0] == ends[1]).all()
start = np.concatenate([array.ravel() for array in begun])
np.testing.assert_allclose(ends[0], start + 1.5, atol=1e-5)
costs = everyones(np.array(seen))
assert costs.shape == (2, 3)
assert (costs[0] == costs[1]).all()
np.testing.assert_allclose(costs[0], costs[0, 0], rtol=1e-5)
assert not worker.advanced.shares
