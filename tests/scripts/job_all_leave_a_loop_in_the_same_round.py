from job_preamble import worker

for epoch in range(1000):
    if worker.global_rank == 1 and epoch == 7:
        worker.request_stop("enough")
    worker.reduce_metrics({"m": (1.0, 1)})
    if worker.agree_to_stop():
        break
assert worker.reduce_metrics({"epochs": (epoch, 1)}) == {"epochs": 7}
worker.report({str(worker.global_rank): epoch})
