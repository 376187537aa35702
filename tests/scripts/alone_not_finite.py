from job_preamble import EASGD, NonFiniteError, join_late, late, np, sys, worker

policy = sys.argv[2]
x = np.zeros(1000, "float32")
worker.init_shared_params([x], EASGD(), on_nonfinite=policy)
if late:
    assert x[3] == 0 and (np.delete(x, 3) == 1).all(), x
else:
    x += 1
    x[3] = np.nan
    try:
        worker.sync_params()
    except NonFiniteError as exc:
        assert "element 3 of parameter 0" in str(exc)
    else:
        assert policy != "raise"
    assert x[3] == 0 if policy == "restore" else np.isnan(x[3])
    assert (np.delete(x, 3) == 1).all()
    join_late()
