from blocks_preamble import *


class Products(aggregation.MonitoredQuantity):
    """Depends on the order of the batches, and on their sizes."""

    def initialize(self):
        self.total, self.sizes = 1.0, []

    def aggregate(self, probabilities, targets):
        assert targets.dtype == np.int64
        self.total = self.total * 0.5 + float(probabilities.max())
        self.sizes.append(len(targets))

    def get_aggregated_value(self):
        return [self.total, tuple(self.sizes)]


def monitored(cost, seed=1):
    """Variables of every kind; built on the same graph."""
    graph = ComputationGraph(cost)
    (x,) = [v for v in graph.inputs if v.name == "features"]
    (y,) = [v for v in graph.inputs if v.name == "targets"]
    rows = x.shape[0].astype("float32")

    def named(variable, name):
        return variable.copy(name)

    tagged = aggregation.mean(named(x.sum(), "mean of rows"), rows)
    perplexity = aggregation.perplexity(-abs(x).sum(), rows)
    weights = graph.parameters[0]
    return [
        cost,
        tagged,
        perplexity,
        aggregation.minimum(named(x.min(), "smallest")),
        aggregation.maximum(named(x.max(axis=0), "greatest")),
        aggregation.concatenate(named(x.mean(axis=0), "each")),
        aggregation.take_last(named(x.sum(axis=0), "last")),
        named(abs(weights).sum(), "norm"),
        aggregation.mean(named(T.eq(y, 1).sum(), "ones"), y.shape[0]),
        Products(requires=[named(abs(x), "sizes"), y], name="products"),
    ]


def records(row, prefix):
    """Return the records of one monitoring extension."""
    return {name[len(prefix) + 1 :]: value for name, value in row.items() if name.startswith(prefix + "_")}


def compare(got, expected, tolerance=1e-6):
    assert got.keys() == expected.keys(), (sorted(got), sorted(expected))
    for name in expected:
        if name.endswith("products"):
            assert got[name][1] == expected[name][1]
            np.testing.assert_allclose(got[name][0], expected[name][0], rtol=tolerance)
        else:
            np.testing.assert_allclose(got[name], expected[name], rtol=tolerance, atol=tolerance, err_msg=name)
            assert np.asarray(got[name]).dtype == np.asarray(expected[name]).dtype, name


evaluators = {}


def one_process(cost, whole):
    """Return what Blocks itself records for the parameters as they are."""
    from blocks.monitoring.evaluators import DatasetEvaluator

    if cost not in evaluators:  # which is compiled once
        evaluators[cost] = DatasetEvaluator(monitored(cost))
    return dict(evaluators[cost].evaluate(whole))
