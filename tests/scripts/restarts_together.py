from job_preamble import EASGD, FOLDER, np, os, worker

x = np.zeros(4)
worker.init_shared_params([x], EASGD())
start = worker.resume_at
print("starts at", tuple(start), "late", worker.late, "with", x[0], flush=True)
for epoch in range(max(1, start.epoch), 4):
    for step in range(start.done_in(epoch), 5):
        fails = sorted(FOLDER.glob("fail-*"))
        if epoch == 3 and step == 2 and worker.global_rank == 1 and fails:
            fails[0].unlink()
            os.kill(os.getpid(), 9)
        x += worker.all_reduce(np.ones(4), timeout_s=60)
        worker.progress(steps=1, epoch=epoch)
    if worker.global_rank == 0:
        worker.copy_to_global()
worker.report({"end": float(x[0])})
