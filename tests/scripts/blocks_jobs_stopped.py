import numpy as np

from blocks_preamble import AllReduceGradients, DistributedMonitoring, EASGD, FinishAfter, ParameterSync, Scale
from blocks_preamble import SimpleExtension, StopTogether, everyones, loop, network, rank, shard_stream, stream, values
from blocks_preamble import worker

cost, error = network()


class StopAt(SimpleExtension):
    def do(self, which_callback, *args):
        self.main_loop.log.current_row["training_finish_requested"] = True


def run(when, policy, sync):
    stop = [StopAt(**when[rank])] if rank in when else []
    rule = AllReduceGradients(Scale(0.1)) if sync else Scale(0.1)
    together = ParameterSync(None) if sync else ParameterSync(EASGD(), every_n_batches=2)
    monitoring = DistributedMonitoring([cost], stream(24, seed=1), prefix="valid")
    extensions = [StopTogether(policy=policy), together, *stop, monitoring, FinishAfter(after_n_epochs=4)]
    main_loop = loop(cost, shard_stream(stream(80), uneven="drop"), extensions, rule)
    main_loop.run()
    assert main_loop.log.current_row["training_finished"]
    assert (everyones(values(main_loop)) == values(main_loop)).all()
    return worker.all_gather(np.array([main_loop.status["epochs_done"], main_loop.status["iterations_done"]]))
