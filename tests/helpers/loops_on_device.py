"""Runs a script with a loop of JAX on a GPU, or on the processor as one, and prints what was done in its memory."""

import collections
import os
import runpy
import sys

import jax
from processor_cuda import use_processor

from platoon_base.array_loops import on_device, places
from platoon_base.centers.device import DeviceCenter
from platoon_base.worker.device_all_reduce import DeviceAllReduce

made = collections.Counter()


def count(kind, method):
    plain = getattr(kind, method)

    def counted(*args, **named):
        made[method] += 1
        return plain(*args, **named)

    setattr(kind, method, counted)


if __name__ == "__main__":
    if "PROCESSOR_NCCL" in os.environ:
        jax.config.update("jax_platforms", "cpu")
        use_processor(os.environ["PROCESSOR_NCCL"])
        places.has_gpu, on_device.is_cuda = lambda: True, lambda device: True
    count(DeviceAllReduce, "add_up")
    count(DeviceCenter, "sync")
    _, out, script, *words = sys.argv
    sys.argv = [script, out, *words]
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        print(f"in device memory: {made['add_up']} sums, {made['sync']} synchronizations")
