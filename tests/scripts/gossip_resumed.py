import sys

from gossip_head import RULE, save, take_turns, turns, worker, x

with worker:
    worker.init_shared_params(x, RULE)
    worker.barrier("all here")
    assert (worker.resume_at.steps == 0) == (sys.argv[3] == "first"), worker.resume_at
    take_turns(turns(2))
    save(sys.argv[3])
    worker.release_shared_params()
