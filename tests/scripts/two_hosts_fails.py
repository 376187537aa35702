from hosts_preamble import rank, say, worker
from platoon_base.errors import PlatoonError

worker.barrier("start")
worker.progress(steps=1)
if rank == 2:
    raise ValueError("rank 2 has had it")
try:
    worker.barrier("end", timeout_s=30)
except PlatoonError as exc:
    say(type(exc).__name__)
