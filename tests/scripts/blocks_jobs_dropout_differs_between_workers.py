from blocks_preamble import *
from theano.sandbox.rng_mrg import MRG_RandomStreams

noise = MRG_RandomStreams(seed=3).uniform((4,), dtype="float32")
cost, error = network()
algorithm = GradientDescent(cost=cost, parameters=ComputationGraph(cost).parameters, step_rule=Scale(0.1))
drawn = theano.shared(np.zeros(4, "float32"))
algorithm.add_updates([(drawn, noise)])
extensions = [ParameterSync(EASGD()), FinishAfter(after_n_batches=1)]
MainLoop(algorithm, shard_stream(stream(16)), extensions=extensions).run()
draws = everyones(drawn.get_value())
assert (draws[0] != draws[1]).all()
