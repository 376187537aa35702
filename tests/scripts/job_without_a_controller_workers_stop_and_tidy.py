import os
import signal
import sys
from pathlib import Path
import numpy as np
from platoon_base import EASGD, connect
from platoon_base.errors import WorkerLostError

x = np.zeros(100)
with connect() as worker:
    worker.init_shared_params([x], EASGD())
    if worker.global_rank == 0:
        Path(sys.argv[1], "other").read_text()  # waits until the other is there too
        os.kill(os.getppid(), signal.SIGKILL)
    else:
        Path(sys.argv[1], "other").write_text("here")
    while not worker.should_stop:
        pass
    try:
        worker.sync_params()
    except WorkerLostError as exc:
        Path(sys.argv[1], f"lost{worker.global_rank}").write_text(str(exc))
Path(sys.argv[1], f"end{worker.global_rank}").touch()
Path(sys.argv[1], f"fifo{worker.global_rank}").open("w").close()
