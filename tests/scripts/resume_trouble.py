"""Once the center is saved something happens to it or to the checkpoints; then the worker trains on."""

from job_preamble import ASGD, ConfigurationError, Path, np, os, sys, until, worker
from platoon_base.checkpoints.files import check_checkpoint
from platoon_base.job.files import JobFiles

kept, what, release = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
files = JobFiles.read(os.environ["PLATOON_JOB"])


def center_is_saved():
    for path in kept.glob("checkpoint-*.npz"):
        try:
            if check_checkpoint(path).parameters:
                return True
        except ConfigurationError:  # a newer one has taken its place
            pass
    return False


def fill():
    with open(kept.parent / "filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


def await_several_tries():
    """Wait for a dozen of missed checkpoints: each makes a file, and removes it."""
    changes = set()

    def several():
        changes.add(kept.stat().st_mtime_ns)
        return len(changes) > 12

    until(several)


x = np.zeros(5000)
worker.init_shared_params([x], ASGD())
until(center_is_saved)
if what.startswith("the disk is full"):
    fill()
if what == "the disk is full for a while":
    await_several_tries()
    (kept.parent / "filler").unlink()
if what == "names are removed":
    for name in (files.center, files.job_state):
        os.unlink(f"/dev/shm{name}")
for _ in range(10):
    x += 1
    worker.progress(steps=1, epoch=1)
    worker.sync_params()
if release:
    worker.release_shared_params()
