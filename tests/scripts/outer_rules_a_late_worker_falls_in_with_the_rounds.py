from job_preamble import LocalSGD, late, np, start_late, worker

x = np.zeros(700_000)
worker.init_shared_params([x], LocalSGD())
if late:
    x += 3
    worker.sync_params()
    for _ in range(5):
        before = x.copy()
        x += 3
        worker.sync_params()
        np.testing.assert_allclose(x - before, 2)
    worker.report({"late": "done"})
else:
    for _ in range(3):
        x += 1
        worker.sync_params()
    np.testing.assert_allclose(x, 3)
    other = start_late()
    while other.poll() is None:
        x += 1
        worker.sync_params()
    assert other.returncode == 0
    before = x.copy()
    x += 1
    worker.sync_params()
    np.testing.assert_allclose(x - before, 1)
