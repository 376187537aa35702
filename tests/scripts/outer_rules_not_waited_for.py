from outer_rules_head import learn, save, worker, x
from watching import until

from platoon_base.errors import CollectiveTimeoutError
from platoon_base.rules import LocalSGD

with worker:
    worker.init_shared_params([x], LocalSGD())
    worker.barrier("all here")
    learn(0)
    if worker.global_rank == 0:
        try:
            worker.sync_params(timeout_s=0.2)
        except CollectiveTimeoutError as error:
            assert "'synchronization round'" in str(error) and "rank 1" in str(error), error
        else:
            raise AssertionError("it has not waited")
        worker.request_stop("in vain")
    else:
        until(lambda: worker.should_stop)
    worker.sync_params()
    save()
