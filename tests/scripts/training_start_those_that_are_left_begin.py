from job_preamble import Variable, np, rank, worker
from platoon_base.worker import copy_first_values, start_training

w, steps = Variable("w", np.full(3, 0.1 + rank, "f4")), Variable("steps", np.int64(rank))
worker.barrier("all are there")
if rank == 0:
    worker.close()
else:
    worker.advanced.meet("without rank 0")
    ranks = start_training(worker, "fit", "fit", values=[w, steps])
    assert ranks == [1, 2]
    assert (w.value == np.float32(1.1)).all() and w.value.dtype == "f4"
    assert steps.value == 1 and steps.value.dtype == "i8"
    copy_first_values([w], worker, participants=ranks)
