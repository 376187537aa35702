from platoon_base import connect

worker = connect()
worker.barrier()
if worker.global_rank == 1:
    raise RuntimeError("the reason why")
