"""Synchronization with the host center, EASGD 0.5 on 10 equal float32 arrays, in GB of parameters per second.

Against, in the same run and interleaved: np.copyto of the same bytes into shared memory, the blocked NumPy form of the
same update, and the fused update under one lock for the whole center. All workers of a row work at the same time.
"alone" is what the only worker of a job does instead of its rule: the center follows it.

    python benchmarks/sync.py [--quick]
"""

from __future__ import annotations

import argparse
import math
import multiprocessing as mp
import os
import time

import numpy as np
import report

from platoon_base.centers.host import HostCenters
from platoon_base.layout import Layout
from platoon_base.rules import EASGD, Adopt
from platoon_base.shm.segments import Segment

MEGABYTES = (1, 16, 128, 512)
WORKERS = (1, 2, 4)
METHODS = ("copyto", "numpy", "one lock", "platoon")
ALONE = "alone"  # of one worker
ARRAYS = 10
RULE = EASGD(0.5)
NAME = f"/platoon-{os.getuid()}-bench{os.environ.setdefault('BENCHMARK_PID', str(os.getpid()))}"
TIMEOUT_S = 120


class NumPyEASGD(EASGD):
    """The same rule without its fused form."""

    kernel = None


def parameters(megabytes: int) -> list[np.ndarray]:
    """Return 10 equal arrays of so many megabytes (2**20 bytes) in all."""
    return [np.random.default_rng(i).random(megabytes * 2**20 // 4 // ARRAYS, "float32") for i in range(ARRAYS)]


def worker(rank: int, megabytes: int, pipe) -> None:
    """Repeat one method for about the seconds asked for, whenever told; answer (repetitions, seconds)."""
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
            ALONE: lambda: striped.sync(Adopt(RULE), local, True, TIMEOUT_S),
        }
        for call in calls.values():
            call()
        pipe.send("ready")
        for method, repetitions, start in iter(pipe.recv, None):
            call = calls[method]
            while time.perf_counter() < start:  # all begin at the same time
                pass
            for _ in range(repetitions):
                call()
            pipe.send(time.perf_counter() - start)
    striped.close()
    whole.close()
    Segment.unlink(f"{NAME}-copy{rank}")


def measure(workers: int, megabytes: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Return GB/s of all workers together, for each method one value a round."""
    centers = [HostCenters(f"{NAME}-striped", workers), HostCenters(f"{NAME}-whole", workers=1)]  # alone: one lock
    start = parameters(megabytes)
    opened = [factory.create(Layout.of(start), RULE, 0) for factory in centers]
    for center in opened:
        center.write(start, True, TIMEOUT_S)
    context = mp.get_context("spawn")
    pipes, processes = [], []
    try:
        for rank in range(workers):
            ours, theirs = context.Pipe()
            processes.append(context.Process(target=worker, args=(rank, megabytes, theirs)))
            processes[-1].start()
            pipes.append(ours)
        for pipe in pipes:
            pipe.recv()
        methods = [*METHODS, ALONE] if workers == 1 else METHODS
        rates: dict[str, list[float]] = {method: [] for method in methods}
        gigabytes = megabytes * 2**20 / 1e9
        guess = dict.fromkeys(methods, 5.0 / workers)  # GB/s of one worker, corrected as it goes
        for _ in range(rounds):
            for method in methods:
                repetitions = max(1, math.ceil(seconds * guess[method] / gigabytes))
                begin = time.perf_counter() + 0.005
                for pipe in pipes:
                    pipe.send((method, repetitions, begin))
                times = [pipe.recv() for pipe in pipes]
                # Until the last is done: a worker that others had to wait for must not count twice.
                rates[method].append(workers * repetitions * gigabytes / max(times))
                guess[method] = rates[method][-1] / workers
        return rates
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(20)
        for factory, center in zip(centers, opened):
            center.close()
            Segment.unlink(factory.name)


def main() -> None:
    """Measure, print, plot, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved")
    quick = parser.parse_args().quick
    rounds, seconds = (5, 0.1) if quick else (15, 0.25)
    results, rows = [], []
    for megabytes in MEGABYTES:
        for workers in WORKERS:
            rates = measure(workers, megabytes, rounds, seconds)
            # Each round's own ratio: what disturbs the machine disturbs all methods of a round alike.
            ratio = {
                m: report.median([a / b for a, b in zip(rates["platoon"], rates[m])]) for m in METHODS if m != "platoon"
            }
            middle = {m: report.median(values) for m, values in rates.items()}
            results.append({"workers": workers, "megabytes": megabytes, "gb_per_s": middle, "ratio": ratio})
            if ALONE in rates:  # the other way round: the time that it takes
                ratio[ALONE] = report.median([a / b for a, b in zip(rates["copyto"], rates[ALONE])])
            rows.append([megabytes, workers, *pad(middle, ALONE).values(), *pad(ratio, ALONE).values()])
    headings = ["MB", "workers", *METHODS, ALONE, *(f"platoon / {m}" for m in METHODS[:-1]), "copyto / alone"]
    report.table("GB of parameters per second, all workers together; medians", headings, rows)
    of = {(r["megabytes"], r["workers"]): r["ratio"] for r in results}
    # A worker alone, and a model smaller than two stripes, have one lock: there the two methods are the same code.
    several = [r["one lock"] for (megabytes, workers), r in of.items() if workers > 1 and megabytes > 2]
    one = [r["one lock"] for (megabytes, workers), r in of.items() if workers == 1 or megabytes <= 2]
    goals = [
        report.goal("one worker, 128 MB, against np.copyto", of[128, 1]["copyto"], 0.75),
        report.goal("two workers, 128 MB, against two simultaneous np.copyto", of[128, 2]["copyto"], 0.75),
        report.goal("a job of one worker, 128 MB: times the time of np.copyto", of[128, 1][ALONE], 1.3, at_least=False),
        report.goal("smallest ratio to one global lock, several stripes", min(several), 1.0),
        report.goal("smallest ratio to one global lock, one stripe (the same code: noise)", min(one), 1.0),
    ]
    if not quick:
        plot(results, report.save("sync", {"results": results, "goals": goals}))


def pad(values: dict[str, float], name: str) -> dict[str, float]:
    """Add a column that only some rows have."""
    return {**values, name: values.get(name, math.nan)}


def plot(results: list[dict], path) -> None:
    """Draw GB/s over the size, one panel for each number of workers."""
    figure, panels = report.figure(ncols=len(WORKERS), figsize=(12, 3.6), sharey=True)
    for panel, workers in zip(panels, WORKERS):
        mine = [r for r in results if r["workers"] == workers]
        for method in METHODS:
            panel.plot([r["megabytes"] for r in mine], [r["gb_per_s"][method] for r in mine], "o-", label=method)
        panel.set(xscale="log", xlabel="MB of parameters", title=f"{workers} worker{'s' * (workers > 1)}")
    panels[0].set(ylabel="GB/s, all workers together")
    panels[0].legend()
    figure.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
