import sys
from platoon_base import connect

policy, voters = sys.argv[2], [int(v) for v in sys.argv[3].split()]
with connect() as worker:
    assert not worker.should_stop
    worker.barrier()
    if worker.global_rank in voters:
        worker.request_stop("enough", policy=policy)
    worker.barrier()
    assert worker.should_stop
    assert worker.stop_reason == "enough"
