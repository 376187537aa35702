from job_preamble import BatchReader, np, worker
from platoon_base.data import BatchServer

if worker.global_rank == 0:
    with BatchServer(name="train", readers=2) as server:
        server.serve((np.arange(3) + k for k in range(6)), "turns")
        assert "/data-train" in server.address
else:
    seen = [x.tolist() for x in BatchReader(name="train", rank=worker.global_rank - 1)]
    worker.report({f"seen {worker.global_rank}": str(seen)})
