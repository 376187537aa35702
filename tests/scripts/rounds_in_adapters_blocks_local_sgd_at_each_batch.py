from blocks_preamble import FinishAfter, ParameterSync, Scale, loop, network, np, shard_stream, size
from blocks_preamble import stream, values
from platoon_plugins.blocks import LocalSGD

cost, _ = network(seed=1)
alone = loop(cost, stream(48, batch=8 * size), [FinishAfter(after_n_epochs=2)], Scale(0.5))
alone.run()
cost, _ = network(seed=1)
sync = ParameterSync(LocalSGD(), every_n_batches=1)
main_loop = loop(cost, shard_stream(stream(48)), [sync, FinishAfter(after_n_epochs=2)], Scale(0.5))
main_loop.run()
cost, _ = network(seed=1)
assert abs(values(alone) - values(loop(cost, stream(8), []))).max() > 0.02
np.testing.assert_allclose(values(main_loop), values(alone), atol=1e-5)
