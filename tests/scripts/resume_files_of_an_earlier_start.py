from job_preamble import EASGD, np, sys, worker
from platoon_base.array_loops import report, save

x = np.zeros(2)
worker.init_shared_params([x], EASGD())
for _ in range(3):
    worker.progress(steps=1, epoch=1)
    worker.sync_params()
report(accuracy=0.5)
if sys.argv[1:]:
    save({"x": x}, sys.argv[1])
    report(trained="x", stopped_by="patience")
