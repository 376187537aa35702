"""Synchronize the weights of ResNet-50 by a rule, and write down how long that took.

    platoon launch -D cuda0 cuda0 keras_gpu_shared_train.py FOLDER RULE

Started by benchmarks/keras_gpu_shared.py.
"""

# ruff: noqa: I001 - platoon_plugins.keras comes before keras

import json
import statistics
import sys
import time
from pathlib import Path

from platoon_plugins.keras import backends
import keras

from platoon_base import connect, rules

SKIPPED, COUNTED = 3, 10  # synchronizations


def wait_for_gpu(variables):
    """Wait for what the back end has queued."""
    if keras.backend.backend() == "torch":
        import torch

        torch.cuda.synchronize()
    else:
        import jax

        jax.block_until_ready([variable.variable.value for variable in variables])


def change(variables):
    """Change all weights on the device."""
    for variable in variables:
        variable.variable.assign(variable.variable.value + 0.001)
    wait_for_gpu(variables)


def seconds_of_copies(size_bytes):
    """Return how long a copy to page-locked memory and one back take; 0 where that is not known."""
    if keras.backend.backend() != "torch":
        return 0.0
    import torch

    there = torch.zeros(size_bytes // 4, device="cuda")
    here, took = torch.empty(there.shape, pin_memory=True), []
    for _ in range(7):
        torch.cuda.synchronize()
        began = time.perf_counter()
        here.copy_(there, non_blocking=True)
        there.copy_(here, non_blocking=True)
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def main():
    """Measure and write."""
    folder, rule = sys.argv[1], getattr(rules, sys.argv[2])()
    worker, backend = connect(), backends.current()
    variables = backend.weights(keras.applications.ResNet50(weights=None))
    size_bytes = sum(variable.view().nbytes for variable in variables)
    worker.init_shared_params(variables, rule)
    took = []
    for _ in range(SKIPPED + COUNTED):
        change(variables)
        worker.barrier()
        began = time.perf_counter()
        worker.sync_params()
        wait_for_gpu(variables)
        took.append(time.perf_counter() - began)
    worker.barrier()
    found = {"keras": keras.__version__, "backend": keras.backend.backend(), "megabytes": size_bytes / 1e6}
    found |= {"sync_s": took[SKIPPED:], "copies_s": seconds_of_copies(size_bytes)}
    Path(folder, f"{worker.global_rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
