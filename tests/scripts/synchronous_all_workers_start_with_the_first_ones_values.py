from job_preamble import np, rank, sys, worker
from platoon_base.worker import start_together

odd = np.asfortranarray(np.arange(6.0).reshape(2, 3)) + rank
params = [np.full(3, rank + 1, "f4"), odd, np.array(rank + 0.1), np.full((), np.nan if rank else -0.0)]
start_together(params, worker)
np.savez(f"{sys.argv[1]}/{rank}.npz", *params)
