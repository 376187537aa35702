from job_preamble import EASGD, LayoutMismatchError, np, worker

x = np.zeros((3, 4))
worker.init_shared_params([x], EASGD(0.5))
for wrong in ([np.ones((5, 4))], [np.ones((4, 3))], [np.ones((3, 4), "float32")], [np.ones((3, 4))] * 2):
    try:
        worker.advanced.served().sync(wrong, timeout_s=60)
    except LayoutMismatchError:
        continue
    raise AssertionError(wrong)
worker.barrier("all were refused")
worker.sync_params()
with worker.center_params():
    assert not x.any(), x
