import sys

from center_momentum_head import CenterMomentum, save, take_turns, turns, worker, x

with worker:
    worker.init_shared_params(x, CenterMomentum())
    worker.barrier("all here")
    first = worker.resume_at.steps == 0
    assert first == (sys.argv[3] == "first"), worker.resume_at
    take_turns(turns(2))
    save(sys.argv[3])
