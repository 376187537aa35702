"""Excerpts of 256 random rows of 3x224x224 float32 from shared memory, in GB of rows per second.

W workers excerpt a part of the list each, at the same time. Against, in the same run and interleaved: numpy.take in one
process, into a new array and into one that is kept, and np.copyto of as many bytes in W processes, which tells what the
memory gives.

    python benchmarks/excerpt.py [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import time

import numpy as np
import report

from platoon_base.data.excerpt import excerpt, part_of
from platoon_base.shm.segments import Segment
from platoon_base.views import array_on

ROW = (3, 224, 224)
BATCH = 256
WORKERS = (1, 2, 4)
NAME = f"/platoon-{os.getuid()}-bench{os.environ.setdefault('BENCHMARK_PID', str(os.getpid()))}-excerpt"
ALONE = ("take, new array", "take, kept array")
TOGETHER = ("excerpt", "copyto")


def worker(rank: int, count: int, pipe) -> None:
    """Do one method whenever told (method, workers, seed, start); answer the seconds since the start."""
    segment = Segment.attach(NAME, writable=False)
    rows = array_on(segment.buffer, (count, *ROW), np.float32)
    kept = np.zeros((BATCH, *ROW), np.float32)
    pipe.send("ready")
    for method, workers, seed, start in iter(pipe.recv, None):
        indices = np.random.default_rng(seed).integers(0, count, BATCH)
        mine = part_of(indices, count, rank, workers)
        out, first = kept[: len(mine)], int(indices[rank]) * (count - BATCH) // count
        while time.perf_counter() < start:  # all begin at the same time
            pass
        if method == "take, new array":
            found = rows.take(mine, axis=0)
        elif method == "take, kept array":
            found = rows.take(mine, axis=0, out=out, mode="clip")  # other modes copy twice
        elif method == "excerpt":
            found = excerpt(rows, mine, out)
        else:
            np.copyto(out, rows[first : first + len(mine)])
            found = None
        took = time.perf_counter() - start
        if found is not None and not np.array_equal(found[:, 1, 7, 3], rows[mine, 1, 7, 3]):
            raise SystemExit(f"{method} gave wrong rows")
        del found
        pipe.send(took)
    del rows
    segment.close()


def measure(count: int, rounds: int) -> dict[tuple[str, int], list[float]]:
    """Return GB/s of all workers together, for each method and number of workers one value a round."""
    context = mp.get_context("spawn")
    pipes, processes = [], []
    with Segment.create(NAME, count * int(np.prod(ROW)) * 4) as segment:
        rows = array_on(segment.buffer, (count, *ROW), np.float32)
        rows[:] = np.random.default_rng(0).random((count, 1, 1, 1), "float32") + np.arange(ROW[2], dtype="float32")
        del rows
        try:
            for rank in range(max(WORKERS)):
                ours, theirs = context.Pipe()
                processes.append(context.Process(target=worker, args=(rank, count, theirs)))
                processes[-1].start()
                pipes.append(ours)
            for pipe in pipes:
                pipe.recv()
            kinds = [(method, 1) for method in ALONE] + [(method, n) for n in WORKERS for method in TOGETHER]
            rates: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
            gigabytes = BATCH * int(np.prod(ROW)) * 4 / 1e9
            for seed in range(rounds + 1):  # the first round warms up
                for method, workers in kinds:
                    start = time.perf_counter() + 0.005
                    for pipe in pipes[:workers]:
                        pipe.send((method, workers, seed, start))
                    took = max(pipe.recv() for pipe in pipes[:workers])
                    if seed:
                        rates[method, workers].append(gigabytes / took)
            return rates
        finally:
            for pipe in pipes:
                pipe.send(None)
            for process in processes:
                process.join(20)
            Segment.unlink(NAME)


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved")
    parser.add_argument("--rows", type=int, default=2000, help="of the data set; 2000 are more than caches hold")
    options = parser.parse_args()
    rates = measure(options.rows, 5 if options.quick else 40)
    cores = len(os.sched_getaffinity(0))
    results, table = [], []
    for (method, workers), values in rates.items():
        # Each round's own ratio: what disturbs the machine disturbs all methods of a round alike.
        ratio = {other: report.median([a / b for a, b in zip(values, rates[other, 1])]) for other in ALONE}
        to_copy = report.median([a / b for a, b in zip(values, rates["copyto", workers])])
        entry = {"method": method, "workers": workers, "gb_per_s": report.median(values)}
        results.append({**entry, "ratio": {**ratio, "copyto": to_copy}})
        table.append([method, workers, entry["gb_per_s"], *ratio.values(), to_copy])
    headings = ["method", "workers", "GB/s", *(f"/ {other}" for other in ALONE), "/ copyto of as many workers"]
    report.table("256 random rows of 3x224x224 float32 together; medians", headings, table)
    of = {(r["method"], r["workers"]): r["ratio"] for r in results}
    goals = []
    for workers in WORKERS:
        # The memory may not give more: copyto tells.
        wanted = 0.9 * min(workers, cores)
        for other in ALONE:
            text = f"{workers} workers against numpy.{other}, in one process"
            goals.append(report.goal(text, of["excerpt", workers][other], wanted))
        goals.append(
            report.goal(f"{workers} workers against np.copyto in as many", of["excerpt", workers]["copyto"], 0.9)
        )
    if not options.quick:
        report.save("excerpt", {"results": results, "goals": goals})


if __name__ == "__main__":
    main()
