from job_preamble import EASGD, np, os, subprocess, sys, worker
from platoon_base.job.files import JobFiles

worker.init_shared_params([np.zeros(1000)], EASGD())
files = JobFiles.read(os.environ["PLATOON_JOB"])
os.utime(files.folder, (0, 0))  # no longer young
platoon = f"{sys.executable} -m platoon_base"


def run(command):
    words = ["sh", "-c", command]
    if sys.argv[1] == "apart":
        words = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs tmpfs /dev/shm && {command}"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


if sys.argv[1] == "removed":
    for name in (files.job_state, files.center):
        os.unlink(f"/dev/shm{name}")
cleaned = run(f"{platoon} clean")
assert files.job not in cleaned.stdout, cleaned.stdout
assert os.path.exists(files.folder)
assert files.job in run(f"{platoon} jobs").stdout
joined = run(f"{platoon} join {files.job} {sys.argv[0]}")
assert joined.returncode != 0
assert "RemoveIPC=no" in joined.stderr and "--ipc" in joined.stderr, joined.stderr
worker.sync_params()
worker.report({"done": 1})
