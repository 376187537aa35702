from job_preamble import start_late, worker

worker.barrier("compiled")
if worker.global_rank == 0:
    other = start_late()
while True:
    weight = worker.advanced.sum_pairs("epoch", {"n": (1.0, 1.0)})[0]["n"][1]
    if weight == 3:
        worker.request_stop("all there")
    if worker.agree_to_stop():
        break
worker.report({str(worker.global_rank): worker.advanced.sum_pairs("end", {"n": (1.0, 1.0)})[0]["n"][1]})
if worker.global_rank == 0:
    assert other.wait(60) == 0
