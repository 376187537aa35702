from blocks_preamble import *
from blocks_evaluation_monitored import *

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
