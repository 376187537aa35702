from blocks_preamble import DistributedMonitoring, FinishAfter, ParameterSync, Scale, everyones
from blocks_preamble import loop, network, rank, stream, values
from platoon_plugins.blocks import DiLoCo

cost, error = network()
monitoring = DistributedMonitoring(
    [cost], stream(40, seed=1), prefix="valid", before_first_epoch=True, after_epoch=True
)
extensions = [
    monitoring,
    ParameterSync(DiLoCo(overlap=0.3), every_n_batches=3),
    FinishAfter(after_n_epochs=4),
]
main_loop = loop(cost, stream(40 + 24 * rank), extensions, Scale(0.1))
main_loop.run()
costs = [row["valid_cost"] for row in main_loop.log.values() if "valid_cost" in row]
assert len(costs) == 5 and costs[-1] < costs[0], costs
assert (everyones(values(main_loop)) == values(main_loop)).all()
