from blocks_preamble import DistributedMonitoring, EASGD, FinishAfter, ParameterSync, loop, network, rank, shard_stream
from blocks_preamble import stream

cost = network()[0]
other = DistributedMonitoring([cost], stream(16), name="mine" if rank else "yours")
extensions = [ParameterSync(EASGD()), other, FinishAfter(after_n_batches=4)]
main_loop = loop(cost, shard_stream(stream(64)), extensions)
main_loop.run()
