"""Three workers, clipping and momentum behind the average, one flattened all-reduce; 20 steps."""

from blocks_preamble import *
from platoon_base.theano_ops import AllReduce


def train(batches, average, extensions, seed=1):
    cost, error = network(seed=seed)
    rules = [StepClipping(0.5), Momentum(0.2, 0.9)]
    rule = CompositeRule([AllReduceGradients(), *rules]) if average else CompositeRule(rules)
    main_loop = trained(cost, batches, [*extensions, FinishAfter(after_n_batches=20)], rule)
    return main_loop


# Other first values on each worker: those of the first one count.
together = train(shard_stream(stream(16 * 8 * 3, batch=8)), True, [ParameterSync(None)], seed=1 + rank)
alone = train(stream(16 * 8 * 3, batch=24), False, [])
np.testing.assert_allclose(values(together), values(alone), rtol=0, atol=1e-5)
assert together.status["iterations_done"] == 20
nodes = together.algorithm._function.maker.fgraph.toposort()
assert sum(isinstance(node.op, AllReduce) for node in nodes) == 1
assert (everyones(values(together)) == values(together)).all()

inside = train(shard_stream(stream(16 * 8 * 3, batch=8)), True, [StopTogether()])
np.testing.assert_array_equal(values(inside), values(together))
