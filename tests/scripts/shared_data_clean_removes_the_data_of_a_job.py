from job_preamble import SharedData, files_of, os, signal, worker
from shared_data_preamble import rows

data = SharedData(rows, "x")
path = f"/dev/shm{files_of(worker).data('x')}"
print(path, flush=True)
for old in (files_of(worker).folder, "/dev/shm" + files_of(worker).job_state, path):
    os.utime(old, (0, 0))
with open(f"{os.environ['PLATOON_JOB']}/warden") as file:  # it would tidy up
    os.kill(int(file.read()), signal.SIGKILL)
os.kill(os.getppid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
