from center_momentum_head import CenterMomentum, save, take_turns, turns, worker, x

with worker:
    worker.init_shared_params(x, CenterMomentum())
    worker.barrier("all here")
    take_turns(turns(2))
    save()
