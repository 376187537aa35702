from job_preamble import DiLoCo, NonFiniteError, np, sys, worker
from outer_rules_head import x

choice = sys.argv[2]
with worker:
    worker.init_shared_params([x], DiLoCo(1, 0.5), on_nonfinite=choice)
    for step in range(2):
        x += 1
        if worker.global_rank == 1 and step == 0:
            x[100_000:100_003] = np.nan
        try:
            worker.sync_params()
        except NonFiniteError as error:
            assert choice == "raise" and worker.global_rank == 1, error
            assert "element 100000" in str(error), error
            worker.report({"raised": 1})
        bad = x[100_000:100_003]
        assert (np.delete(x, range(100_000, 100_003)) == [1.5, 3.25][step]).all()
        assert (bad == [0.75, 2.375][step]).all(), bad  # d = 1/2, then 1
