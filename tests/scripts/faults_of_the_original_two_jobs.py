from job_preamble import ASGD, np, sys, worker

step = float(sys.argv[1])
x = np.zeros(1000)
worker.init_shared_params([x], ASGD())
for _ in range(50):
    x += step
    worker.sync_params()
worker.barrier()
worker.copy_to_local()
assert (x == 2 * 50 * step).all(), x[:3]
