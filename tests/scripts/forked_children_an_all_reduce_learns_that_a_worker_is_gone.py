from job_preamble import WorkerLostError, await_file, time, worker
from forked_children_head import CHILD, die_with_a_child, end_child, x

worker.all_reduce(x)
if worker.global_rank == 1:
    die_with_a_child()
try:
    await_file(CHILD)
    began = time.monotonic()
    worker.all_reduce(x, timeout_s=50)
except WorkerLostError as exc:
    worker.report({"seconds": time.monotonic() - began, "said": str(exc)})
finally:
    end_child()
