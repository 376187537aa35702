"""Examples put together into batches, filtered ones, shuffled ones, and batches that each worker has of its own."""

from blocks_preamble import *
from blocks_evaluation_monitored import *
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
main_loop = trained(
    cost, shard_stream(stream(64)), [*extensions, ParameterSync(EASGD()), FinishAfter(after_n_batches=1)]
)
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
