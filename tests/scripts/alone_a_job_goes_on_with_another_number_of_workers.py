from job_preamble import EASGD, np, sys, worker

x = np.zeros(10)
worker.init_shared_params([x], EASGD())
assert (x == float(sys.argv[1])).all(), x
for step in range(5):
    x += worker.global_size == 1
    worker.progress(steps=1)
    worker.sync_params()
assert (x == float(sys.argv[1]) + 5 * (worker.global_size == 1)).all(), x
