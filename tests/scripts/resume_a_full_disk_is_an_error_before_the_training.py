from job_preamble import EASGD, np, worker

worker.init_shared_params([np.random.standard_normal(1_000_000)], EASGD())
while not worker.should_stop:
    worker.progress(steps=1)
    worker.sync_params()
