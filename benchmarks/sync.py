"""Synchronization with the host center, EASGD 0.5 on 10 equal float32 arrays, in GB of parameters per second.

Against, in the same run and interleaved: np.copyto of the same bytes into shared memory, the blocked NumPy form of the
same update, and the fused update under one lock for the whole center. All workers of a row work at the same time.
"alone" is what the only worker of a job does instead of its rule: the center follows it.

    python benchmarks/sync.py [--quick]
"""

import math
import os
import time

import harness
import numpy as np

from platoon_base.centers.host import HostCenters
from platoon_base.layout import Layout
from platoon_base.rules import EASGD, Adopt
from platoon_base.shm.segments import Segment

MEGABYTES, WORKERS = (1, 16, 128, 512), (1, 2, 4)
METHODS = ("copyto", "numpy", "one lock", "platoon")
ARRAYS, RULE, TIMEOUT_S = 10, EASGD(0.5), 120
NAME = f"/platoon-{os.getuid()}-bench{os.environ.setdefault('BENCHMARK_PID', str(os.getpid()))}"


class NumPyEASGD(EASGD):
    kernel = None


def parameters(megabytes):
    return [np.random.default_rng(i).random(megabytes * 2**20 // 4 // ARRAYS, "float32") for i in range(ARRAYS)]


def worker(rank, megabytes, pipe):
    """Repeat a method as often as told, from the moment told; answer the seconds."""
    os.environ["OMP_NUM_THREADS"] = "1"
    local = parameters(megabytes)
    layout = Layout.of(local)
    striped = HostCenters(f"{NAME}-striped").attach(layout, RULE, rank)
    whole = HostCenters(f"{NAME}-whole").attach(layout, RULE, rank)
    with Segment.create(f"{NAME}-copy{rank}", layout.nbytes) as target:
        copies = layout.views(target.buffer)

        def copyto():
            for source, copy in zip(local, copies):
                np.copyto(copy, source)

        calls = {
            "copyto": copyto,
            "numpy": lambda: striped.sync(NumPyEASGD(0.5), local, True, TIMEOUT_S),
            "one lock": lambda: whole.sync(RULE, local, True, TIMEOUT_S),
            "platoon": lambda: striped.sync(RULE, local, True, TIMEOUT_S),
            "alone": lambda: striped.sync(Adopt(RULE), local, True, TIMEOUT_S),
        }
        for call in calls.values():
            call()
        for method, repetitions, start in harness.orders(pipe):
            for _ in range(repetitions):
                calls[method]()
            pipe.send(time.perf_counter() - start)
    striped.close()
    whole.close()
    Segment.unlink(f"{NAME}-copy{rank}")


def rates_of(workers, megabytes, rounds, round_s):
    centers = [HostCenters(f"{NAME}-striped", workers), HostCenters(f"{NAME}-whole", workers=1)]  # alone: one lock
    start = parameters(megabytes)
    opened = [factory.create(Layout.of(start), RULE, 0) for factory in centers]
    for center in opened:
        center.write(start, True, TIMEOUT_S)
    methods, gigabytes = [*METHODS, "alone"] if workers == 1 else METHODS, megabytes * 2**20 / 1e9
    guess = dict.fromkeys(methods, 5.0 / workers)  # GB/s of one worker, corrected as it goes
    try:
        with harness.Together(workers, worker, megabytes) as together:

            def rate(method):
                repetitions = max(1, math.ceil(round_s * guess[method] / gigabytes))
                # Until the last is done: a worker that others had to wait for must not count twice.
                found = workers * repetitions * gigabytes / together.seconds(method, repetitions)
                guess[method] = found / workers
                return found

            return harness.interleaved({method: lambda m=method: rate(m) for method in methods}, rounds)
    finally:
        for factory, center in zip(centers, opened):
            center.close()
            Segment.unlink(factory.name)


def measure():
    options = harness.options(__doc__)
    rows, results = [], []
    for megabytes in MEGABYTES:
        for workers in WORKERS:
            rates = rates_of(workers, megabytes, *((5, 0.1) if options.quick else (15, 0.25)))
            ratio = {m: harness.ratio(rates["platoon"], rates[m]) for m in METHODS[:-1]}
            middle = {m: harness.median(values) for m, values in rates.items()}
            if workers == 1:  # the other way round: the time that it takes
                ratio["alone"] = harness.ratio(rates["copyto"], rates["alone"])
            results.append({"workers": workers, "megabytes": megabytes, "gb_per_s": middle, "ratio": ratio})
            row = {"MB": megabytes, "workers": workers, **middle, "alone": middle.get("alone")}
            row |= {f"platoon / {m}": ratio[m] for m in METHODS[:-1]}
            rows.append({**row, "copyto / alone": ratio.get("alone")})
    harness.table("GB of parameters per second, all workers together; medians", rows)
    of = {(r["megabytes"], r["workers"]): r["ratio"] for r in results}
    # A single worker, and a model smaller than two stripes, have one lock: there the methods are the same code.
    several = [ratio["one lock"] for (megabytes, workers), ratio in of.items() if workers > 1 and megabytes > 2]
    one = [ratio["one lock"] for (megabytes, workers), ratio in of.items() if workers == 1 or megabytes <= 2]
    harness.goal("one worker, 128 MB, against np.copyto", of[128, 1]["copyto"], 0.75)
    harness.goal("two workers, 128 MB, against two simultaneous np.copyto", of[128, 2]["copyto"], 0.75)
    harness.goal("a job of one worker, 128 MB: times the time of np.copyto", of[128, 1]["alone"], 1.3, False)
    harness.goal("smallest ratio to one global lock, several stripes", min(several), 1.0)
    harness.goal("smallest ratio to one global lock, one stripe (the same code: noise)", min(one), 1.0)
    path = harness.save("sync", {"results": results}, options)
    panels = {}
    for workers in WORKERS:
        mine = [r["gb_per_s"] for r in results if r["workers"] == workers]
        panels[f"{workers} workers"] = {m: (MEGABYTES, [each[m] for each in mine]) for m in METHODS}
    harness.plot(path, panels, xlabel="MB of parameters", ylabel="GB/s, all workers together")


if __name__ == "__main__":
    harness.main(measure)
