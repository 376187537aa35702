"""What a worker of courier.py does: ``courier_worker.py FOLDER ELEMENTS``."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from platoon_base import connect
from platoon_base.rules import EASGD

STEPS, EVERY = 600, 10


def main() -> None:
    """Make steps, and write how long they took."""
    folder, elements = Path(sys.argv[1]), int(sys.argv[2])
    worker = connect()
    x = np.zeros(elements, np.float32)
    worker.init_shared_params([x], EASGD())
    a = np.random.default_rng(worker.global_rank).normal(size=(500, 500)).astype(np.float32)
    worker.barrier("begin")
    tens, syncs = [], []
    for _ in range(STEPS // EVERY):
        began = time.perf_counter()
        for _ in range(EVERY):
            a @ a
            worker.progress(steps=1)
        x[:1000] += 1e-3
        synced = time.perf_counter()
        worker.sync_params()
        ended = time.perf_counter()
        tens.append((ended - began) / EVERY)
        syncs.append(ended - synced)
    result = {"step_ms": 1e3 * statistics.mean(tens[2:]), "worst_sync_ms": 1e3 * max(syncs[2:])}
    (folder / f"{worker.global_rank}.json").write_text(json.dumps(result))
    worker.barrier("end")


if __name__ == "__main__":
    main()
