import numpy as np
import os
import signal
import sys
import threading

from signals_preamble import JobLiveness, connect, exchange_pids, is_stopped, until, waits_in

worker = connect()
rank, x = worker.global_rank, np.zeros(100_000)


WAIT = sys.argv[2]
pids = exchange_pids(worker)
worker.all_reduce(x)


def go_on():
    os.kill(pids[1], signal.SIGCONT)


if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 0:
    until(lambda: is_stopped(pids[1]))
    if WAIT == "barrier":
        wake = threading.Thread(target=lambda: (until(lambda: waits_in("barrier barrier", 0, 2)), go_on()))
        wake.start()
    else:
        ask, asked = JobLiveness.why_absent, []

        def asking(liveness, ranks):
            why = ask(liveness, ranks)
            asked.append(why)
            if len(asked) == 5:
                go_on()
            return why

        JobLiveness.why_absent = asking
if WAIT == "barrier":
    worker.barrier()
else:
    assert (worker.all_reduce(x + 1, timeout_s=60) == 3).all()
    assert rank != 0 or asked[:5] == [""] * 5, asked
worker.barrier("end")
