"""One worker of two: what the average of the center is after update_center, and in half precision."""

from job_preamble import AveragedEASGD, ConfigurationError, np, worker

try:
    worker.init_shared_params([np.ones(3, "float16")], AveragedEASGD(), moments=[])
except ConfigurationError as exc:
    worker.report({f"half {worker.global_rank}": str(exc)})

x = [np.zeros(3, "float32"), np.zeros(3, "float32")]
worker.init_shared_params(x, AveragedEASGD(), moments=[])
for _ in range(20):  # steps that are no synchronizations
    worker.progress(steps=1)
worker.barrier("all here")
if worker.global_rank == 0:

    def update(center):
        center[0][1] = 5

    worker.update_center(update)
worker.barrier("updated")
with worker.center_params():
    np.testing.assert_array_equal(x[0], [0, 5, 0])
    np.testing.assert_array_equal(x[1], 0)
worker.barrier("seen")
worker.copy_to_local()
np.testing.assert_array_equal(x[0], [0, 5, 0])
worker.release_shared_params()

# A second training, after steps that another method has made: its average begins with the first synchronization.
y = [np.zeros(1, "float64")]
worker.init_shared_params(y, AveragedEASGD(scale=None), moments=[])
worker.barrier("again")
for turn in range(worker.global_size):
    if turn == worker.global_rank:
        y[0] += 1.0
        worker.sync_params()
    worker.barrier(f"turn {turn}")
with worker.center_params():
    worker.report({f"average {worker.global_rank}": float(y[0][0])})
worker.barrier("end")
