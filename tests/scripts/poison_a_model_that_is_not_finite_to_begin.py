from job_preamble import EASGD, NonFiniteError, Variable, np, raises, rank, sys, worker

first = sys.argv[2] == "True"
for bad, dtype in [(b, d) for b in (np.nan, np.inf, -np.inf) for d in ("float16", "float32", "float64")]:
    w, b = Variable("W", np.full((2, 3), rank + 1, dtype)), Variable("hidden.b", np.full(4, rank + 1, dtype))
    if rank == 0:
        if not first:
            worker.barrier("shared")
        b.value[2] = bad
        with raises(NonFiniteError, "hidden.b has a NaN or an infinity"):
            worker.init_shared_params([w, b], EASGD(0.5))
        assert not worker.advanced.shares
        assert (w.value == 1).all(), "what was refused stays as it was"
        b.value[2] = 1
        if first:
            worker.barrier("refused")
            worker.barrier("shared")
        worker.init_shared_params([w, b], EASGD(0.5))
    else:
        if first:
            worker.barrier("refused")
        worker.init_shared_params([w, b], EASGD(0.5))
        worker.barrier("shared")
    assert worker.advanced.shares
    assert (w.value == 2).all() and (b.value == 2).all(), "the first whose values were good gave them to all"
    worker.sync_params()
    worker.release_shared_params()
