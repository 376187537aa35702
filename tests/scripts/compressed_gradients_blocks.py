from blocks_preamble import AllReduceGradients, CompositeRule, ComputationGraph, FinishAfter
from blocks_preamble import Momentum, data, loop, network, np, shard_stream, stream, theano, values
from gradients_here import say_results, sent_bytes, worker

cost, _ = network(hidden=3000)
rule = CompositeRule([AllReduceGradients(), Momentum(0.002, 0.9)])
main_loop = loop(cost, shard_stream(stream(256)), [FinishAfter(after_n_batches=40)], rule)
before = sent_bytes()
main_loop.run()
sent = sent_bytes() - before
inputs = {each.name: each for each in ComputationGraph(cost).inputs}
features, targets = data(256).get_data(None, slice(0, 256))
loss = theano.function([inputs["features"], inputs["targets"]], cost)(np.asarray(features), np.asarray(targets))
say_results(loss, [values(main_loop)], sent)
worker.barrier("end")
