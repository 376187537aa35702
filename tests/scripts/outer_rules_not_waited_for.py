from outer_rules_head import learn, save, worker, x
from watching import until

from platoon_base.errors import CollectiveTimeoutError
from platoon_base.rules import LocalSGD
from refusing import raises

with worker:
    worker.init_shared_params([x], LocalSGD())
    worker.barrier("all here")
    learn(0)
    if worker.global_rank == 0:
        with raises(CollectiveTimeoutError, "'synchronization round'", "rank 1"):
            worker.sync_params(timeout_s=0.2)
        worker.request_stop("in vain")
    else:
        until(lambda: worker.should_stop)
    worker.sync_params()
    save()
