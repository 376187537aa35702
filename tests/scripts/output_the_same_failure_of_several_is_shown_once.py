from platoon_base import connect

worker = connect()
worker.barrier()
raise ValueError(f"worker {worker.global_rank} has a bad file")
