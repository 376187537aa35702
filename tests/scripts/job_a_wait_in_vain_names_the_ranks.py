import sys
from pathlib import Path
from platoon_base import connect
from platoon_base.errors import CollectiveTimeoutError
from refusing import raises

fifo = Path(sys.argv[1], "fifo")
with connect() as worker:
    if worker.global_rank == 0:
        with raises(CollectiveTimeoutError, "rank 1", "lonely"):
            worker.barrier("lonely", timeout_s=0.2)
        fifo.write_text("go on")
    else:
        fifo.read_text()
    worker.barrier("end")
