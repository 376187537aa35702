from job_preamble import EASGD, np, os, signal, subprocess, sys, worker
from platoon_base.job.files import JobFiles

worker.init_shared_params([np.zeros(1000)], EASGD())
files = JobFiles.read(os.environ["PLATOON_JOB"])
print(files.folder, files.job_state, files.center, flush=True)
for path in (files.folder, f"/dev/shm{files.job_state}", f"/dev/shm{files.center}"):
    os.utime(path, (0, 0))
alive = subprocess.run([sys.executable, "-m", "platoon_base", "clean"], capture_output=True, text=True)
assert files.job not in alive.stdout, alive.stdout
with open(f"{files.folder}/warden") as file:  # it would tidy up
    os.kill(int(file.read()), signal.SIGKILL)
os.kill(os.getppid(), signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
