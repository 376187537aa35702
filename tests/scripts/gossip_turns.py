from gossip_head import RULE, save, take_turns, turns, worker, x

with worker:
    worker.init_shared_params(x, RULE)
    worker.barrier("all here")
    take_turns(turns(2))
    save()
