from job_preamble import ASGD, os, until, worker
from forked_children_head import die_with_a_child, end_child, x


class Dies(ASGD):
    kernel = None if os.environ["PLATOON_RANK"] == "1" else "asgd"

    def sync(self, *arrays):
        die_with_a_child()


worker.init_shared_params([x], Dies())
worker.barrier()
if worker.global_rank == 1:
    worker.sync_params()
try:
    until(lambda: worker.gather(1) == [1])  # without the other, whose end the controller has noticed
    for _ in range(3):
        x += 1
        worker.sync_params()
    worker.copy_to_local()
    worker.report({"last": float(x.min())})
finally:
    end_child()
