from job_preamble import Path, connect, os, signal, sys, time, until

FOLDER, END = Path(sys.argv[1]), sys.argv[2]


def end():
    if END == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if END == "exits":
        os._exit(3)
    worker.close()
    if END == "leaves":
        sys.exit()
    until(lambda: (FOLDER / "asks").exists())
    time.sleep(0.2)
    raise OSError


with connect() as worker:
    worker.progress(steps=3)
    assert worker.is_leader == (worker.global_rank == 0)
    worker.barrier()
    if worker.global_rank == 0:
        end()
    until(lambda: len(worker.gather(0)) == 2)  # ranks 1 and 2
    (FOLDER / "asks").touch()
    if worker.is_leader:
        (FOLDER / f"by {worker.global_rank}").touch()
    worker.barrier()
print("the new leader")
