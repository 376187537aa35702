from job_preamble import EASGD, NonFiniteError, np, sys, worker

bad, policy = float(sys.argv[2]), sys.argv[3]
x = np.ones(20_000, "float32")
worker.init_shared_params([x], EASGD(0.5), on_nonfinite=policy)
if worker.global_rank == 0:
    x[:] = 3
    x[12_345] = bad
    try:
        worker.sync_params()
        assert policy != "raise"
    except NonFiniteError as exc:
        assert policy == "raise"
        assert "rank 0" in str(exc) and "12345" in str(exc) and "parameter 0" in str(exc), exc
    assert np.isfinite(x).all() == (policy == "restore")
worker.barrier()
if worker.global_rank == 1:
    worker.copy_to_local()
    assert np.isfinite(x).all()
    assert x[0] == 2 and x[12_345] == 1 and x[-1] == 2
worker.barrier()
