import numpy

from by_hand_preamble import ParamSyncRule, worker

import theano


class AddOne(ParamSyncRule):
    def update_params(self, local_values, master_values):
        for local, master in zip(local_values, master_values):
            master += 1 + 0 * local


params = [theano.shared(numpy.zeros(200000, dtype="float32"), "w")]
worker.init_shared_params(params, AddOne())
worker.handle.barrier("both")
for i in range(50):
    worker.sync_params()
worker.handle.barrier("done")
numpy.testing.assert_array_equal(worker.shared_params[0], 100)
if worker.global_rank == 0:
    params[0].set_value(numpy.full(200000, numpy.nan, dtype="float32"))
    try:
        worker.sync_params()
    except ArithmeticError as exc:
        print(exc)
    numpy.testing.assert_array_equal(worker.shared_params[0], 100)
