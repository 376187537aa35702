from job_preamble import ASGD, np, worker

w = np.zeros(10)
worker.init_shared_params([w], ASGD())
for step in range(50):
    w += 1
    worker.sync_params()
    worker.progress(steps=1)
    print("x" * 50_000)
worker.barrier()
worker.copy_to_local()
if worker.global_rank == 1:
    raise ValueError("the disk is full")
open(f"result{worker.global_rank}", "w").write(str(w[0]))
