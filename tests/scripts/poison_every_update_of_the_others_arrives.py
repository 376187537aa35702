from job_preamble import ASGD, NonFiniteError, np, rank, sys, worker

policy = sys.argv[2]
bad, told = slice(3, 1000, 7), 0
x, y = np.zeros(1000, "float32"), np.zeros((3, 5))
worker.init_shared_params([x, y], ASGD(), on_nonfinite=policy)
worker.barrier("all share")
for step in range(40):
    x += 10**rank
    y += 10**rank
    if rank == 0:
        x[bad] = (np.nan, np.inf, -np.inf)[step % 3]
    try:
        worker.sync_params()
    except NonFiniteError:
        assert (rank, policy) == (0, "raise")
        told += 1
    if rank == 0:
        assert np.isfinite(x).all() == (policy == "restore")
    with worker.center_params():
        assert np.isfinite(x).all() and np.isfinite(y).all()
assert told == (40 if (rank, policy) == (0, "raise") else 0)
worker.barrier("all trained")
worker.copy_to_local()
clean = np.ones(1000, bool)
clean[bad] = False
assert (x[clean] == 40 * 111).all() and (y == 40 * 111).all()
assert (x[bad] == 40 * 110).all()
