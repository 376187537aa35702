# ruff: noqa: F401 - for the lines that tests add
from job_preamble import ASGD, EASGD, Path, connect, np, sys, time, worker

STEPS, PER_EPOCH = 40, 10
folder, pause_at = Path(sys.argv[1]), int(sys.argv[2])
x, y = np.zeros(4), np.zeros((2, 3), "float32")
worker.init_shared_params([x, y], ASGD())
start = worker.resume_at
kept = worker.take_kept("twice")
print("starts at", tuple(start), "kept", kept, "center", int(x[0]), "seed", worker.seed, flush=True)
worker.barrier("all began")
for epoch in range(max(start.epoch, 1), STEPS // PER_EPOCH + 1):
    for step in range(start.done_in(epoch), PER_EPOCH):
        x += 1
        y += 1
        worker.progress(steps=1, epoch=epoch)
        worker.sync_params()
        done = PER_EPOCH * (epoch - 1) + step + 1
        worker.keep("twice", 2 * done)
        if done == pause_at:
            (folder / f"paused-{worker.global_rank}").touch()
            while not worker.should_stop:
                time.sleep(0.01)
            raise SystemExit("stopped")
worker.advanced.meet("end")
worker.copy_to_local()
worker.report({"center": float(x[0]), "second": float(y[1, 2])})
