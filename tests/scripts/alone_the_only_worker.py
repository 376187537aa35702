from job_preamble import np, parse_rule, sys, worker
from alone_training import train


def share(w):
    worker.init_shared_params([w], parse_rule(sys.argv[2], "the test"))


def sync(step):
    if step % 10 == 9:
        worker.sync_params(synchronous=step < 100)


w = train(share, sync)
assert worker.advanced.shares
own = w.copy()
w -= 1  # a step that was not synchronized yet does not matter
with worker.center_params():
    np.savez(sys.argv[1] + "/seen.npz", own=own, center=w + 1)
worker.copy_to_local()
assert (w == own - 1).all()
worker.release_shared_params()
assert (w == own - 1).all()
