from job_preamble import Path, await_file, connect, np

w = np.zeros(10)
with connect() as worker:
    worker.init_shared_params([w])
    print("begun", flush=True)
    worker.report({"rank": worker.global_rank})
    if worker.global_rank == 0:
        await_file(Path("go"))
    worker.barrier()
    for step in range(30):
        w += 1
        worker.sync_params()
        worker.progress(steps=1)
        print("step", step, "x" * 1000, flush=True)
print("trained to the end")
