"""Five steps of each worker, a reported value, and hyperparameters; it fails where a file ``fails`` is."""

import time

from job_preamble import EASGD, np, os, worker

worker.init_shared_params([np.zeros(3, "float32")], EASGD(0.5))
worker.advanced.describe(optimizer="sgd", nothing=None)
worker.progress(steps=4, epoch=1, loss=0.75)
began = time.monotonic()
while time.monotonic() < began + 1.0:  # A worker measures its use of the machine once a second.
    pass
worker.progress(steps=1, epoch=1, loss=0.75)
worker.report({"val_loss": 0.25, "note": "text"})
worker.barrier("end")
if os.path.exists("fails"):
    raise SystemExit(1)
