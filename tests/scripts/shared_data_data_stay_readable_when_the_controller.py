from job_preamble import FOLDER, SharedData, await_file, files_of, np, os, rank, signal, worker
from shared_data_preamble import rows

data = SharedData(rows, "x")
worker.barrier()
if rank == 0:
    await_file(FOLDER / "rank 1 needs the controller no more")
    os.kill(os.getppid(), signal.SIGKILL)
(FOLDER / f"rank {rank} needs the controller no more").touch()
while not worker.should_stop:
    pass
np.testing.assert_array_equal(data.excerpt([5, 6]), rows[[5, 6]])
path = f"/dev/shm{files_of(worker).data('x')}"
assert os.path.exists(path)
worker.close()
(FOLDER / "path").write_text(path)
(FOLDER / f"rank {rank} has closed").touch()
