import sys

from outer_rules_head import learn, save, worker, x

from platoon_base.rules import DiLoCo

with worker:
    worker.init_shared_params([x], DiLoCo(0.7, 0.8))
    worker.barrier("all here")
    first = worker.resume_at.steps
    assert first == int(sys.argv[2]), first
    for step in range(first, first + 3):
        learn(step)
        worker.progress(steps=1, epoch=1)
        worker.sync_params()
    learn(99)
    save()
