import math
import os
import signal
from platoon_base import connect
from platoon_base.errors import ConfigurationError

with connect() as worker:
    rank = worker.global_rank
    everybody = worker.gather([rank, f"worker {rank}", rank / 2, None])
    assert everybody == [[r, f"worker {r}", r / 2, None] for r in range(4)], everybody
    try:
        worker.gather("x" * (3000 if rank == 2 else 3), name="one is too large")
    except ConfigurationError as exc:
        assert "limit is 2048" in str(exc) and rank == 2
        worker.gather("", name="one is too large")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert worker.gather(rank) == [0, 2, 3]
    if rank == 0:
        worker.close()
    else:
        assert worker.gather({"rank": rank, "loss": math.inf}) == [
            {"rank": 2, "loss": math.inf},
            {"rank": 3, "loss": math.inf},
        ]
        worker.report({str(rank): "ok"})
