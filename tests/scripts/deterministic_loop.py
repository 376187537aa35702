"""Usage: RULE PERIOD STEPS [BUSY_RANK]: train on noise; the busy rank computes longer for each step."""

from job_preamble import hashlib, np, parse_rule, sys, worker

rule, period, steps = parse_rule(sys.argv[1], "the test"), int(sys.argv[2]), int(sys.argv[3])
busy = int(sys.argv[4]) if len(sys.argv) > 4 else -1
noise = np.random.RandomState(worker.shard_seed)
w = np.random.standard_normal(5000).astype("float32") + worker.global_rank  # unseeded, and other values on each worker
worker.init_shared_params([w], rule)
for step in range(1, steps + 1):
    target = noise.standard_normal(w.size).astype("float32")
    if step <= worker.resume_at.steps:
        continue
    w -= np.float32(0.1) * (w - target)
    if busy == worker.global_rank:
        np.linalg.svd(np.ones((60, 60)) + np.eye(60))
    worker.progress(steps=1, epoch=1)
    if step % period == 0:
        worker.sync_params()
worker.barrier()
own = hashlib.sha256(w.tobytes()).hexdigest()
worker.copy_to_local()
worker.barrier()  # one that leaves a gossip gives its weight to another, and the last bits of the mean change
print(f"bits of rank {worker.global_rank}: {own} center {hashlib.sha256(w.tobytes()).hexdigest()}", flush=True)
