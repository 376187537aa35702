from job_preamble import ASGD, exchange_pids, np, signal, worker

signal.alarm(120)  # a deadlock ends the worker
x = np.zeros(1000)
worker.init_shared_params([x], ASGD())
pids = exchange_pids(worker)
