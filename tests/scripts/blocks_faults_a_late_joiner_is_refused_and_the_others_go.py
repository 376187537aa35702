import os
import sys

from blocks_preamble import DistributedMonitoring, EASGD, FinishAfter, Look, ParameterSync, StopTogether, loop, network
from blocks_preamble import rank, shard_stream, stream, tmp, worker

import subprocess


def join(main_loop):
    if main_loop.status["iterations_done"] == 2 and rank == 0:
        environment = {k: v for k, v in os.environ.items() if k != "PLATOON_RANK"}
        command = [sys.executable, "-m", "platoon_base.worker_process.child", __file__, tmp]
        late = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert late.returncode == 1 and "joined late" in late.stderr, late.stderr


monitoring = DistributedMonitoring([network()[0]], stream(24, seed=1), prefix="valid")
extensions = [ParameterSync(EASGD()), StopTogether(), monitoring, FinishAfter(after_n_epochs=2)]
if not worker.late:
    extensions.append(Look(after_batch=join))
main_loop = loop(network()[0], shard_stream(stream(64)), extensions)
main_loop.run()
assert main_loop.status["epochs_done"] == 2
