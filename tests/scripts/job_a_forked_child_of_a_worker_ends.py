from job_preamble import EASGD, np, os, sys, worker

worker.init_shared_params([np.zeros(1000)], EASGD())
if os.fork() == 0:
    sys.exit(0)
assert os.wait()[1] == 0
worker.sync_params()
worker.barrier()
