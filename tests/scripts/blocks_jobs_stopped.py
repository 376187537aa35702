from blocks_preamble import *

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
    main_loop = trained(cost, shard_stream(stream(80), uneven="drop"), extensions, rule)
    assert main_loop.log.current_row["training_finished"]
    same_everywhere(main_loop)
    return worker.all_gather(np.array([main_loop.status["epochs_done"], main_loop.status["iterations_done"]]))
