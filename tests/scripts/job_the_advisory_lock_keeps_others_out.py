from job_preamble import Path, sys, worker

counter = Path(sys.argv[1]) / "counter"
counter.touch()
worker.barrier()
for _ in range(200):
    worker.lock()
    try:
        counter.write_text(str(int(counter.read_text() or 0) + 1))
    finally:
        worker.unlock()
