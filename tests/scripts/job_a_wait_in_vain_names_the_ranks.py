from job_preamble import CollectiveTimeoutError, Path, raises, sys, worker

fifo = Path(sys.argv[1], "fifo")
if worker.global_rank == 0:
    with raises(CollectiveTimeoutError, "rank 1", "lonely"):
        worker.barrier("lonely", timeout_s=0.2)
    fifo.write_text("go on")
else:
    fifo.read_text()
worker.barrier("end")
