from device_momentum_head import *

joined = os.path.join(sys.argv[1], "joined")
if not worker.late:
    take_turns(Replay(rule, starts), 1)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    until(lambda: os.path.exists(joined))
    worker.sync_params()  # with partitions that another owns now
    assert all(np.isfinite(np.asarray(array)).all() for array in arrays)
else:
    before = [np.asarray(array) for array in arrays]
    worker.sync_params()
    after = [np.asarray(array) for array in arrays]
    with worker.center_params():
        require_equal(after, "the center")
    open(joined, "w").close()
    worker.report({"moved": float(sum(np.abs(a - b).sum() for a, b in zip(after, before)))})
