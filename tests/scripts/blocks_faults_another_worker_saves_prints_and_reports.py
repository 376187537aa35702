from blocks_preamble import *

cost, error = network()


class Fails(TrainingExtension):  # a class, as Checkpoint pickles the extensions
    def after_batch(self, batch):
        if rank == 0 and self.main_loop.status["iterations_done"] == 5:
            raise RuntimeError("on purpose")


path = os.path.join(sys.argv[1], "model.zip")
monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
extensions = [
    ParameterSync(EASGD(), every_n_batches=2),
    Fails(),
    monitoring,
    Printing(),
    Checkpoint(path, after_epoch=True),
    StopTogether(),
]
train = shard_stream(stream(80), uneven="drop")
loop(cost, train, [*extensions, FinishAfter(after_n_epochs=3)]).run()
