from job_preamble import np, os, sys, worker
from platoon_base.rules import default_period

x = np.array([1.0])
worker.init_shared_params([x])
for step in range(1, 10_001):
    x -= 0.01 * x
    worker.progress(steps=1, epoch=1)
    if step % default_period() == 0:
        worker.sync_params()
    if step % 20 == 0:
        with worker.center_params():
            worker.barrier("report")
            if worker.global_rank == 0:
                worker.report({"val_loss": float(x[0] ** 2 / 2), "best": "a.npz"})
            worker.barrier("reported")
        if worker.agree_to_stop():
            break
print("ended", os.environ.get("PLATOON_RULE"), sys.argv[1:])
