from job_preamble import EASGD, LayoutMismatchError, np, worker

model = [np.zeros((3, 4)), np.zeros(2)]
if worker.global_rank == 0:
    worker.init_shared_params(model, EASGD())
    worker.barrier("center is there")
    worker.barrier("other has tried")
    worker.sync_params()
else:
    worker.barrier("center is there")
    try:
        worker.init_shared_params(model[:1], EASGD())
    except LayoutMismatchError as exc:
        worker.report({"error": str(exc)})
    worker.barrier("other has tried")
worker.close()
