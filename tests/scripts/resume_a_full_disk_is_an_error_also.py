from job_preamble import EASGD, Path, np, sys, until, worker

worker.keep("trained", 0)
until(lambda: any(Path(sys.argv[1]).glob("checkpoint-*.npz")))
worker.init_shared_params([np.random.standard_normal(1_000_000)], EASGD())
until(lambda: worker.should_stop)
