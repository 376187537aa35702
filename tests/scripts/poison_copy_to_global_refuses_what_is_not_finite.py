from job_preamble import NonFiniteError, Variable, np, parse_rule, raises, sys, worker

w, b = Variable("W", np.zeros((2, 3))), Variable("b", np.zeros(4, "float32"))
worker.init_shared_params([w, b], parse_rule(sys.argv[2], "the test"), on_nonfinite="restore")
if worker.global_rank == 0:
    for bad in (np.nan, np.inf, -np.inf):
        w.value[:], b.value[:] = 8, (8, 8, 8, bad)
        with raises(NonFiniteError, "b has a NaN or an infinity"):
            worker.copy_to_global()
        assert (w.value == 8).all() and b.value[2] == 8, "its own values stay"
        with worker.center_params():
            assert (w.value == 0).all() and (b.value == 0).all()
    b.value[3] = 8
    worker.sync_params()
worker.barrier("synchronized")
worker.copy_to_local()
expected = 4 if "EASGD" in sys.argv[2] else 8
assert (w.value == expected).all() and (b.value == expected).all(), (w.value, b.value)
