from center_momentum_head import CenterMomentum, save, take_turns, turns, worker, x

with worker:
    worker.init_shared_params(x, CenterMomentum())
    worker.barrier("all here")
    take_turns(turns(2))
    if worker.global_rank == 1:
        worker.copy_to_global()
    worker.barrier("overwritten")
    take_turns(turns(3))
    save()
