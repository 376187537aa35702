import numpy as np

from blocks_preamble import ComputationGraph, EASGD, FinishAfter, GradientDescent, MainLoop, ParameterSync, Scale
from blocks_preamble import everyones, network, shard_stream, stream, theano

from theano.tensor.shared_randomstreams import RandomStreams

streams = RandomStreams(seed=3)
noise = streams.normal((4,)).astype("float32")
table = theano.shared(np.arange(12, dtype="int32").reshape(2, 6), name="a table, not a random stream")
drawn = theano.shared(np.zeros(4, "float32"))
cost, error = network()
algorithm = GradientDescent(cost=cost, parameters=ComputationGraph(cost).parameters, step_rule=Scale(0.1))
algorithm.add_updates([(drawn, noise), (table, table + 0), *streams.updates()])
extensions = [ParameterSync(EASGD()), FinishAfter(after_n_batches=1)]
MainLoop(algorithm, shard_stream(stream(16)), extensions=extensions).run()
assert (table.get_value() == np.arange(12).reshape(2, 6)).all()
draws = everyones(drawn.get_value())
assert (draws[0] != draws[1]).all()
