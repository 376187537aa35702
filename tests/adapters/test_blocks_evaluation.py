"""Monitoring divided among workers, against that of Blocks on the whole stream in one process."""

import re

import pytest

from platoon_base import compat

compat.apply()
pytest.importorskip("blocks.main_loop", reason="needs Blocks: BLOCKS=/path/to/a/checkout make test")

import numpy as np
from blocks.monitoring import aggregation
from blocks.monitoring.evaluators import AggregationBuffer
from theano import tensor

from platoon_base.errors import ConfigurationError
from platoon_plugins.blocks import DistributedMonitoring, register_aggregation
from platoon_plugins.blocks.aggregation import Accumulators
from platoon_plugins.blocks.shares import Share, gather_shares

pytestmark = [pytest.mark.blocks, pytest.mark.timeout(300)]

MONITORED = '''
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
        cost, tagged, perplexity,
        aggregation.minimum(named(x.min(), "smallest")), aggregation.maximum(named(x.max(axis=0), "greatest")),
        aggregation.concatenate(named(x.mean(axis=0), "each")), aggregation.take_last(named(x.sum(axis=0), "last")),
        named(abs(weights).sum(), "norm"), aggregation.mean(named(T.eq(y, 1).sum(), "ones"), y.shape[0]),
        Products(requires=[named(abs(x), "sizes"), y], name="products"),
    ]

def records(row, prefix):
    """Return the records of one monitoring extension."""
    return {name[len(prefix) + 1:]: value for name, value in row.items() if name.startswith(prefix + "_")}

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
'''


@pytest.mark.parametrize(
    ("workers", "rows"), [(3, 77), (2, 8), (3, 13)], ids=["unequal", "one batch", "fewer batches than workers"]
)
def test_every_kind_of_variable_is_that_of_one_process(run_blocks, workers, rows):
    """The last batch is smaller; with a center, the values are the center's."""
    run_blocks(
        MONITORED
        + f"""
cost, error = network()
def whole():
    return stream({rows}, seed=3)
monitoring = DistributedMonitoring(monitored(cost), whole(), prefix="valid", after_epoch=True)
together = ParameterSync(EASGD(), every_n_batches=2)
def look(main_loop):
    # Nobody moves the center before all have looked.
    got, own = records(main_loop.log.current_row, "valid"), values(main_loop)
    with worker.center_params():
        assert (values(main_loop) != own).any()
        compare(got, one_process(cost, whole()))
    worker.barrier("looked")
    seen.append(got)
seen = []
extensions = [monitoring, Look(after_epoch=look), together, FinishAfter(after_n_epochs=2)]
main_loop = loop(cost, shard_stream(stream(64)), extensions)
first = one_process(cost, whole())
main_loop.run()
begun = records(main_loop.log[0], "valid")
compare(begun, first)
got = seen[-1]
assert len(seen) == 2 and got.keys() == begun.keys()
packed = np.array([float(np.sum(got[name])) for name in sorted(got) if name != "products"])
assert (everyones(packed) == packed).all()
""",
        workers=workers,
    ).require_success()


def test_averaged_gradients_are_monitored_exactly_at_every_epoch(run_blocks):
    run_blocks(
        MONITORED
        + """
cost, error = network()
def whole():
    return stream(45, seed=3)
found = []
def look(main_loop):
    row = main_loop.log.current_row
    got = records(row, "valid")
    compare(got, one_process(cost, whole()))
    found.append(got)
monitoring = DistributedMonitoring(monitored(cost), whole(), prefix="valid", every_n_batches=3)
main_loop = loop(cost, shard_stream(stream(80), uneven="drop"), [monitoring, Look(after_epoch=look),
                 FinishAfter(after_n_epochs=2)], AllReduceGradients(Scale(0.1)))
main_loop.run()
assert len(found) == 2 and (found[0]["cost"] != found[1]["cost"])
"""
    ).require_success()


@pytest.mark.slow
def test_batches_that_transformers_make_are_those_of_one_process(run_blocks):
    """Examples put together into batches, filtered ones, shuffled ones, and batches that each worker has of its own."""
    run_blocks(
        MONITORED
        + """
from fuel.schemes import SequentialExampleScheme, ConstantScheme
from fuel.transformers import Batch, Filter, Flatten, Mapping, Merge
from fuel.datasets import Dataset
class Lines(Dataset):
    # Gives the next so many rows, as one that reads a file does.
    provides_sources = ("features", "targets")
    def open(self):
        return [0]
    def get_data(self, state=None, request=None):
        rows = list(range(state[0], min(state[0] + request, 45)))
        state[0] += request
        return data(45, 3).get_data(request=rows)
def batched():
    examples = DataStream(data(45, 3), iteration_scheme=SequentialExampleScheme(45))
    return Batch(examples, ConstantScheme(8))
def filtered():
    return Mapping(Filter(stream(77, seed=3), lambda batch: batch[0][0, 0] > -0.5), double)
def double(batch):
    return (2 * batch[0], batch[1])
def mapped():
    return Mapping(Flatten(stream(77, seed=3), which_sources=("features",)), double)
def merged():
    def of(source):
        rows = dict(zip(("features", "targets"), data(45, 3).get_data(request=list(range(45)))))
        return DataStream(IndexableDataset({source: rows[source]}), iteration_scheme=SequentialScheme(45, 8))
    return Merge((of("features"), of("targets")), ("features", "targets"))
def sized():
    return DataStream(Lines(), iteration_scheme=ConstantScheme(8, num_examples=45))
streams = {"batched": batched, "filtered": filtered, "mapped": mapped, "merged": merged, "sized": sized}
cost, error = network()
extensions = [DistributedMonitoring(monitored(cost), make(), prefix=name) for name, make in streams.items()]
mine = stream(24, seed=10 + rank) if rank < 2 else stream(3, seed=12)
extensions.append(DistributedMonitoring(monitored(cost), mine, sharded=True, prefix="own"))
main_loop = loop(cost, shard_stream(stream(64)), [*extensions, ParameterSync(EASGD()), FinishAfter(after_n_batches=1)])
main_loop.run()
first, fresh = main_loop.log[0], network()[0]
for name, make in streams.items():
    got = records(first, name)
    compare(got, one_process(fresh, make()))

class Chained:
    def get_epoch_iterator(self, as_dict):
        for part in (stream(24, seed=10), stream(24, seed=11), stream(3, seed=12)):
            yield from part.get_epoch_iterator(as_dict=as_dict)
got = records(first, "own")
compare(got, one_process(fresh, Chained()))
""",
        workers=3,
    ).require_success()


def test_training_is_monitored_over_the_batches_of_all(run_blocks):
    """The learning rate is 0: so it does not matter in which order one process sees the same batches."""
    run_blocks(
        MONITORED
        + """
def run(train, extension, ours):
    cost, error = network()
    variables = [v for v in monitored(cost) if v.name not in ("last", "each", "norm")]
    rule = AllReduceGradients(Scale(0.0)) if ours == "averaged" else Scale(0.0)
    extra = [ParameterSync(EASGD(), every_n_batches=2)] if ours == "rule" else []
    main_loop = loop(cost, train, [extension(variables, prefix="train", after_epoch=True), *extra,
                     FinishAfter(after_n_epochs=2)], rule)
    main_loop.run()
    return [records(main_loop.log[row], "train") for row in main_loop.status["_epoch_ends"]]

expected = run(stream(72), TrainingDataMonitoring, None)
for ours in ("averaged", "rule"):
    rows = run(shard_stream(stream(72), uneven="drop"), DistributedTrainingMonitoring, ours)
    for got, one in zip(rows, expected):
        got["products"][0] = one["products"][0]        # other workers' batches come behind one's own
        compare(got, one, 3e-6)
    packed = np.array([rows[1]["cost"], rows[0]["smallest"]])
    assert (everyones(packed) == packed).all()
""",
        workers=3,
    ).require_success()


def test_when_a_worker_dies_the_others_do_its_part(run_blocks):
    outcome = run_blocks(
        MONITORED
        + """
import signal
cost, error = network()
def whole():
    return stream(77, seed=3)
class Deadly(type(whole())):
    def get_data(self, request=None):
        if rank == 1 and main_loop.status["epochs_done"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().get_data(request)
evil = Deadly(data(77, 3), iteration_scheme=SequentialScheme(77, 8))
monitoring = DistributedMonitoring(monitored(cost), evil, prefix="valid")
own = DistributedMonitoring([cost], stream(24, seed=10 + rank), sharded=True, prefix="own")
extensions = [own, monitoring, ParameterSync(EASGD(), every_n_batches=2), FinishAfter(after_n_epochs=2)]
main_loop = loop(cost, shard_stream(stream(64)), extensions, Scale(0.0))
expected = one_process(cost, whole())
main_loop.run()
for row in main_loop.status["_epoch_ends"]:
    compare(records(main_loop.log[row], "valid"), expected)
""",
        workers=3,
    )
    assert [e.status for e in sorted(outcome.result.exits)] == [0, 137, 0], outcome.logs
    told = "own: the batches of rank 1 are missing from now on, which only it had"
    assert [log.count(told) for log in outcome.logs] == [1, 0, 0], outcome.logs


def test_an_unknown_aggregation_scheme_is_refused_until_it_is_registered(run_blocks):
    run_blocks(
        MONITORED
        + """
from platoon_base.errors import ConfigurationError
class SumOfSquares(aggregation.AggregationScheme):
    def get_aggregator(self):
        total = theano.shared(np.zeros((), self.variable.dtype))
        added = [(total, total + self.variable ** 2)]
        return aggregation.Aggregator(self, [(total, T.zeros_like(total))], added, total)
cost, error = network()
(x,) = [v for v in ComputationGraph(cost).inputs if v.name == "features"]
squares = x.sum().copy("squares")
squares.tag.aggregation_scheme = SumOfSquares(squares)
try:
    DistributedMonitoring([squares], stream(45))
except ConfigurationError as error:
    assert "register_aggregation(SumOfSquares" in str(error), error
else:
    raise AssertionError("taken")
register_aggregation(SumOfSquares, "sum")
main_loop = loop(cost, shard_stream(stream(16)), [DistributedMonitoring([squares], stream(45)), ParameterSync(EASGD()),
                                                  FinishAfter(after_n_batches=1)])
main_loop.run()
expected = sum(batch["features"].sum() ** 2 for batch in stream(45).get_epoch_iterator(as_dict=True))
np.testing.assert_allclose(main_loop.log[0]["squares"], expected, rtol=1e-6)
"""
    ).require_success()


def test_a_scheme_with_other_accumulators_than_the_one_it_is_derived_from_is_refused():
    class More(aggregation.Mean):
        def get_aggregator(self):
            aggregator = super().get_aggregator()
            aggregator.initialization_updates = aggregator.initialization_updates[:2]
            return aggregator

    x = tensor.matrix("x")
    variable = x.sum().copy("sum")
    variable.tag.aggregation_scheme = More(x.sum(), 1.0)
    buffer = AggregationBuffer([variable])
    with pytest.raises(ConfigurationError, match="register_aggregation.More"):
        Accumulators(buffer)
    register_aggregation(More, "sum", "sum", "max")
    with pytest.raises(ConfigurationError, match="2 accumulators, 3 expected"):
        Accumulators(buffer)


def test_a_scheme_that_makes_its_accumulators_anew_is_not_taken_for_the_one_it_is_derived_from():
    """As Blocks derives Maximum and Concatenate from Minimum."""

    class Total(aggregation.Minimum):
        def get_aggregator(self):
            return super()._build_aggregator(self.variable)

    x = tensor.matrix("x")
    variable = x.sum().copy("sum")
    variable.tag.aggregation_scheme = aggregation.Mean(x.sum(), 1.0)
    buffer = AggregationBuffer([variable])
    variable.tag.aggregation_scheme = Total(x.sum())
    with pytest.raises(ConfigurationError, match="register_aggregation.Total"):
        Accumulators(buffer)


def test_complex_values_are_refused():
    with pytest.raises(ConfigurationError, match="complex64"):
        gather_shares(None, "values", Share(1, [np.zeros(2, "complex64")], []), [0], timeout_s=1)


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ("shard_stream(stream(45))", "pass the whole stream"),
        ("ServerDataStream(('features', 'targets'), False)", "comes from a ServerDataStream.*sharded=True"),
    ],
)
def test_a_stream_that_cannot_be_divided_is_refused(run_blocks, bad, complaint):
    outcome = run_blocks(
        f"""
        from fuel.streams import ServerDataStream
        cost, error = network()
        monitoring = DistributedMonitoring([cost], {bad})
        loop(cost, shard_stream(stream(16)), [monitoring, ParameterSync(EASGD())]).run()
        """
    )
    assert outcome.result.status == 1
    assert all(re.search(f"ConfigurationError: .*{complaint}", log) for log in outcome.logs), outcome.logs


def test_bad_combinations_are_refused():
    class Own(aggregation.AggregationScheme):
        def get_aggregator(self):
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match="one of sum, min"):
        register_aggregation(Own, "average")
    with pytest.raises(ConfigurationError, match="AggregationScheme"):
        register_aggregation(int, "sum")
    with pytest.raises(TypeError):
        DistributedMonitoring()
