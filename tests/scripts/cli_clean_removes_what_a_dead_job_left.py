from job_preamble import EASGD, SharedData, np, os, signal, subprocess, sys, worker
from platoon_base.job.files import JobFiles

worker.init_shared_params([np.zeros(1000)], EASGD())
data = SharedData(np.ones((9, 3)), "x")
files = JobFiles.read(os.environ["PLATOON_JOB"])
segments = files.job_state, files.center, files.data("x")
print(files.folder, *segments, flush=True)
for path in (files.folder, *(f"/dev/shm{name}" for name in segments)):
    os.utime(path, (0, 0))
alive = subprocess.run([sys.executable, "-m", "platoon_base", "clean"], capture_output=True, text=True)
assert files.job not in alive.stdout, alive.stdout
with open(f"{files.folder}/warden") as file:  # it would tidy up
    os.kill(int(file.read()), signal.SIGKILL)
os.kill(os.getppid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
