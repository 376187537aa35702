from platoon_base import connect

with connect() as worker:
    if worker.global_rank == 1:
        worker.request_stop("enough", policy="leader")
    worker.barrier()
    assert not worker.should_stop
    worker.barrier()
