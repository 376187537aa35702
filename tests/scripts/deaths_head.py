from job_preamble import os, signal, sys, until, waits_in

WAY, VICTIM = sys.argv[2], int(sys.argv[3])
is_victim = int(os.environ.get("PLATOON_RANK", -1)) == VICTIM


def die(*_):
    if WAY == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if WAY == "exits":
        os._exit(0)
    raise RuntimeError("on purpose")


signal.signal(signal.SIGUSR1, die)  # for victims that die while they wait


def others_wait_in(worker, name):
    until(lambda: all(waits_in(name, rank) for rank in range(worker.global_size) if rank != worker.global_rank))
