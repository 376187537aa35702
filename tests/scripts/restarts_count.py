from job_preamble import ASGD, Path, np, os, sys, time, worker

STEPS, PER_EPOCH = 30, 10
folder, how, waits = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "wait"
x = np.zeros(4)
worker.init_shared_params([x], ASGD())
start = worker.resume_at
kept = worker.take_kept("twice")
print("starts at", tuple(start), "late", worker.late, "kept", kept, "center", int(x[0]), flush=True)
if not worker.late:
    worker.barrier("all began")
for step in range(start.steps, STEPS):
    x += 1
    worker.progress(steps=1, epoch=1 + step // PER_EPOCH)
    if step % 2:
        worker.sync_params()
        worker.keep("twice", 2 * (step + 1))
    fails = sorted(folder.glob("fail-*"))
    if worker.global_rank == 1 and step == 14 and fails:
        fails[0].unlink()
        if how == "kill":
            os.kill(os.getpid(), 9)
        raise SystemExit("this worker fails")
worker.sync_params()
done = folder / "done"
if worker.global_rank == 1:
    done.touch()
else:
    while waits and not done.exists() and not worker.should_stop:
        time.sleep(0.01)
    worker.copy_to_local()
    worker.report({"center": float(x[0])})
