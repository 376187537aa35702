from job_preamble import ASGD, connect, np, time
from close_head import mapped, refused

with connect() as worker:
    worker.init_shared_params([np.zeros(1000)], ASGD())
    worker.all_reduce(np.ones(3))
    worker.advanced.stop_votes.open(1)
    worker.advanced.stop_votes.cast()
    worker.progress(steps=3, epoch=1, loss=0.5)
    worker.barrier()
    voters = set(range(worker.global_size))
    if worker.global_rank == 0:
        worker.request_stop("enough")
    while not worker.should_stop:
        time.sleep(1e-3)

assert not mapped(), mapped()
for _ in range(3):
    assert worker.closed
    assert worker.should_stop
    assert worker.stop_reason == "enough"
    assert worker.advanced.stop_votes.voters() == voters
    assert worker.advanced.stop_votes.passed("all", voters)
    assert worker.advanced.shares
    assert len(worker.shard(4)) == 4 // worker.global_size
    refused(lambda: worker.progress(steps=1))
    refused(lambda: worker.advanced.stop_votes.cast())
    refused(lambda: worker.advanced.stop_votes.open(2))
    refused(lambda: worker.sync_params())
    refused(lambda: worker.center_params().__enter__())
    refused(lambda: worker.all_reduce(np.ones(3)))
    refused(lambda: worker.keep("x", 1))
    worker.close()
