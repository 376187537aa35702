import sys
from pathlib import Path
from platoon_base import connect
from platoon_base.errors import CollectiveTimeoutError

fifo = Path(sys.argv[1], "fifo")
with connect() as worker:
    if worker.global_rank == 0:
        try:
            worker.barrier("lonely", timeout_s=0.2)
        except CollectiveTimeoutError as exc:
            assert "rank 1" in str(exc) and "lonely" in str(exc), exc
        else:
            raise AssertionError("nobody else came, and yet it went on")
        fifo.write_text("go on")
    else:
        fifo.read_text()
    worker.barrier("end")
