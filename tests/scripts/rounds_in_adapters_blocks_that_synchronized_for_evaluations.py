from blocks_preamble import DistributedMonitoring, FinishAfter, ParameterSync, Scale, loop, network, shard_stream
from blocks_preamble import stream

from platoon_plugins.blocks import EASGD

cost, _ = network()
monitoring = DistributedMonitoring([cost], stream(40, seed=1), prefix="valid", after_epoch=True)
extensions = [monitoring, ParameterSync(EASGD(), every_n_batches=50), FinishAfter(after_n_epochs=2)]
loop(cost, shard_stream(stream(80)), extensions, Scale(0.1)).run()
