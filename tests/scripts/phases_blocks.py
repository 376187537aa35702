"""A main loop whose batches, steps and validations sleep; see phases_keras.py."""

from blocks_preamble import (
    EASGD,
    DataStream,
    DistributedMonitoring,
    FinishAfter,
    IndexableDataset,
    ParameterSync,
    SequentialScheme,
    TrainingExtension,
    loop,
    network,
    np,
    shard_stream,
)
from sleeping import report, sleep


class SlowSet(IndexableDataset):
    """Rows that take a while to read."""

    def get_data(self, state=None, request=None):
        sleep(*self.slow)
        return super().get_data(state, request)


class Slow(TrainingExtension):
    def before_batch(self, batch):
        sleep("compute", 0.04)


def slow_stream(rows, name, seconds):
    rng = np.random.RandomState(0)
    x = rng.normal(size=(rows, 6)).astype("float32")
    found = SlowSet({"features": x, "targets": x[:, :3].argmax(axis=1).astype("int64")[:, None]})
    found.slow = name, seconds
    return DataStream(found, iteration_scheme=SequentialScheme(rows, 8))


cost, error = network()
extensions = [
    ParameterSync(EASGD(), every_n_batches=2),
    Slow(),
    DistributedMonitoring([error], slow_stream(32, "validation", 0.03), prefix="val", after_epoch=True),
    FinishAfter(after_n_epochs=3),
]
loop(cost, shard_stream(slow_stream(128, "loading", 0.02)), extensions).run()
report()
