"""Each method has a loss of its own, scale / steps; one that is to be dropped waits for it without a further step."""

from job_preamble import np, os, sys, time, worker

LIMIT_S = 60.0
rule = os.environ.get("PLATOON_RULE", "")
scales = dict(word.split("=") for word in sys.argv[1:])  # rule=scale; a rule of scale 9 waits
scale = float(scales.get(rule.partition("(")[0], 5.0))
x = np.zeros(1)
worker.init_shared_params([x])
for step in range(1, 61):
    worker.progress(steps=1, epoch=1)
    if step % 5 == 0:
        worker.barrier("report")
        if worker.global_rank == 0:
            worker.report({"val_loss": scale / step})
        worker.barrier("reported")
    stop = worker.agree_to_stop()
    deadline = time.monotonic() + LIMIT_S
    while scale == 9.0 and step == 25 and not stop and time.monotonic() < deadline:
        stop = worker.agree_to_stop()
    if stop:
        break
print("ended after", step)
