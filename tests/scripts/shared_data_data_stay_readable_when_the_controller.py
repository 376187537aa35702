import numpy as np
import os
import signal

from shared_data_preamble import folder, rank, rows, worker
from watching import await_file
from platoon_base.data import SharedData
from platoon_base.job.joining import files_of

data = SharedData(rows, "x")
worker.barrier()
if rank == 0:
    await_file(folder / "rank 1 needs the controller no more")
    os.kill(os.getppid(), signal.SIGKILL)
(folder / f"rank {rank} needs the controller no more").touch()
while not worker.should_stop:
    pass
np.testing.assert_array_equal(data.excerpt([5, 6]), rows[[5, 6]])
path = f"/dev/shm{files_of(worker).data('x')}"
assert os.path.exists(path)
worker.close()
(folder / "path").write_text(path)
(folder / f"rank {rank} has closed").touch()
