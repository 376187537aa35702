from job_preamble import ASGD, np, start_late, sys, worker
from deaths_head import WAY

x = np.zeros(1000)
worker.init_shared_params([x], ASGD())
if worker.global_rank == 0:
    assert start_late(sys.argv[4], *sys.argv[1:4]).wait(60) == {"killed": -9, "exits": 0, "raises": 1}[WAY]
for _ in range(20):
    x += 1
    worker.sync_params()
assert worker.advanced.meet("trained") == [0, 1]
worker.copy_to_local()
worker.report({str(worker.global_rank): x[0]})
