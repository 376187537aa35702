from job_preamble import ConfigurationError, GoSGD, np, raises, worker

x = np.zeros(4)
with raises(ConfigurationError, "keeps separate moments on each worker"):
    worker.init_shared_params([x], GoSGD(), moments=[np.zeros(4)])
worker.init_shared_params([x], GoSGD())
for call in (lambda: worker.center_arrays, lambda: worker.update_center(lambda center: None)):
    with raises(ConfigurationError, "GoSGD has no center", "copy_to_global"):
        call()
worker.barrier("refused")
if worker.global_rank == 1:
    x[:] = 3
    worker.copy_to_global()
worker.barrier("overwritten")
worker.sync_params()
assert (x == 3).all(), x
worker.barrier("synchronized")
worker.copy_to_local()
assert (x == 3).all(), x
