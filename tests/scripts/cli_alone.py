from job_preamble import EASGD, np, sys, worker

rows = worker.shard(10)
way = sys.argv[1]
if way == "meets":
    worker.barrier()
if way == "shares" or (way == "one shares" and worker.global_rank == 1):
    worker.init_shared_params([np.zeros(3)], EASGD())
    worker.sync_params()
if way in ("forgets", "copies"):
    worker.init_shared_params([np.zeros(3)], EASGD())
if way == "copies":
    worker.copy_to_local()
if way == "compares":
    worker.advanced.require_same("rows", "10", "give all the same")
if way == "measures":
    worker.reduce_metrics({"x": (1.0, 1.0)})
if way == "averages":
    worker.all_reduce(np.zeros(3), "mean")
if way == "fails" and worker.global_rank == 1:
    worker.progress(steps=1)  # a failure before the first step would end the other worker
    sys.exit(1)
