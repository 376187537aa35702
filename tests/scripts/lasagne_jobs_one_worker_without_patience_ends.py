from platoon_base import connect
from platoon_plugins.lasagne import StopOnPatience

worker = connect()
stop = StopOnPatience(2)
found = [stop(value if worker.global_rank else -value) for value in (1.0, 2.0, 3.0)]
assert found == [False, False, True] and stop.reason, found
assert not worker.should_stop
worker.barrier("looked")
stop = StopOnPatience(2)
if worker.global_rank:
    worker.request_stop("enough")
worker.barrier("asked")
assert stop(1.0) and stop.reason == "enough"
