from job_preamble import join_late, json, late, np, parse_rule, sys, worker

late_value, own_value, center = json.loads(sys.argv[3])
x = np.full(1000, 100.0 if late else 3.0)
worker.init_shared_params([x], parse_rule(sys.argv[2], "the test"))
if late:
    assert (x == 5.0).all(), x
    x += 4
    worker.sync_params()
    np.testing.assert_allclose(x, late_value)
else:
    x += 2
    worker.sync_params()
    assert (x == 5.0).all()
    join_late()
    x += 1
    worker.sync_params()
    np.testing.assert_allclose(x, own_value)
    with worker.center_params():
        np.testing.assert_allclose(x, center)
    worker.copy_to_local()
    np.testing.assert_allclose(x, center)
