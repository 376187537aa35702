from blocks_preamble import DistributedMonitoring, EASGD, FinishAfter, ParameterSync, Scale, loop
from blocks_preamble import network, shard_stream, stream

cost, _ = network()
monitoring = DistributedMonitoring(
    [cost], stream(40, seed=1), prefix="valid", before_first_epoch=True, after_epoch=True
)
extensions = [ParameterSync(EASGD(), every_n_batches=50), monitoring, FinishAfter(after_n_epochs=3)]
main_loop = loop(cost, shard_stream(stream(80)), extensions, Scale(0.1))
main_loop.run()
costs = [row["valid_cost"] for row in main_loop.log.values() if "valid_cost" in row]
assert len(costs) == 4 and all(after < before for before, after in zip(costs, costs[1:])), costs
