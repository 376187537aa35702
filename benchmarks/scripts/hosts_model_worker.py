"""What a worker of hosts_model.py does: ``hosts_model_worker.py FOLDER KIND BYTES CALLS``; writes seconds per call."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from platoon_base import connect
from platoon_base.rules import EASGD, LocalSGD

STEP_S, EVERY = 0.02, 10  # of a step without an exchange, and steps from one synchronization to the next


def main() -> None:
    """Make calls of one kind, all workers at the same time."""
    folder, kind, size_bytes, calls = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    worker = connect()
    x = np.zeros(size_bytes // 4, np.float32)
    call = {"reduce": lambda: worker.all_reduce(x, "sum", x), "round": worker.sync_params, "async": worker.sync_params}
    if kind != "reduce":
        worker.init_shared_params([x], LocalSGD() if kind == "round" else EASGD())
    taken, steps = [], []
    worker.barrier("begin", timeout_s=60)
    for _ in range(calls + 2):
        began = time.perf_counter()
        call[kind]()
        taken.append(time.perf_counter() - began)
        worker.progress(steps=1)
        for _ in range(EVERY if kind == "async" else 0):
            began = time.perf_counter()
            x[:1000] += np.float32(1e-3)
            worker.progress(steps=1)
            time.sleep(STEP_S)
            steps.append(time.perf_counter() - began)
    worker.barrier("end", timeout_s=120)
    result = {"calls": taken[2:], "steps": steps, "value": float(x[0])}
    (folder / f"{kind}{worker.global_rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
