from blocks_preamble import *
from blocks_evaluation_monitored import *


class SumOfSquares(aggregation.AggregationScheme):
    def get_aggregator(self):
        total = theano.shared(np.zeros((), self.variable.dtype))
        added = [(total, total + self.variable**2)]
        return aggregation.Aggregator(self, [(total, T.zeros_like(total))], added, total)


cost, error = network()
(x,) = [v for v in ComputationGraph(cost).inputs if v.name == "features"]
squares = x.sum().copy("squares")
squares.tag.aggregation_scheme = SumOfSquares(squares)
with raises(ConfigurationError, "register_aggregation(SumOfSquares"):
    DistributedMonitoring([squares], stream(45))
register_aggregation(SumOfSquares, "sum")
main_loop = trained(
    cost,
    shard_stream(stream(16)),
    [DistributedMonitoring([squares], stream(45)), ParameterSync(EASGD()), FinishAfter(after_n_batches=1)],
)
expected = sum(batch["features"].sum() ** 2 for batch in stream(45).get_epoch_iterator(as_dict=True))
np.testing.assert_allclose(main_loop.log[0]["squares"], expected, rtol=1e-6)
