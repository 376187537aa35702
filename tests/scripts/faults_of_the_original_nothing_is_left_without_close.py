from job_preamble import EASGD, np, os, worker

x = np.zeros(1_000_000)
worker.init_shared_params([x], EASGD())
worker.sync_params()
worker.all_reduce(x)
os._exit(0)
