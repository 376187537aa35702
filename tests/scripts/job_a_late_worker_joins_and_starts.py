from job_preamble import EASGD, join_late, late, np, worker

x = np.full(1000, 100.0 if late else 3.0)
worker.init_shared_params([x], EASGD(0.5))
if late:
    assert (x == 7.0).all(), x
    assert worker.global_rank == 2
    x += 4
    worker.sync_params()  # d = 2
    worker.report({"late": "done"})
else:
    if worker.global_rank == 0:
        x[:] = 7.0
        worker.copy_to_global()
        join_late()
    worker.barrier("joined and gone")
    worker.copy_to_local()
    assert (x == 9.0).all(), x
