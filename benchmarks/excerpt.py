"""Excerpts of 256 random rows of 3x224x224 float32 from shared memory, in GB of rows per second.

W workers excerpt a part of the list each, at the same time. Against, in the same run and interleaved: numpy.take in one
process, into a new array and into one that is kept, and np.copyto of as many bytes in W processes, which tells what the
memory gives.

    python benchmarks/excerpt.py [--quick] [--rows 2000]
"""

import os
import time

import harness
import numpy as np

from platoon_base.data.excerpt import excerpt, part_of
from platoon_base.parameters import array_on
from platoon_base.shm.segments import Segment

ROW, BATCH, WORKERS = (3, 224, 224), 256, (1, 2, 4)
NAME = f"/platoon-{os.getuid()}-bench{os.environ.setdefault('BENCHMARK_PID', str(os.getpid()))}-excerpt"
ALONE, TOGETHER = ("take, new array", "take, kept array"), ("excerpt", "copyto")


def worker(rank, count, pipe):
    """Do one method whenever told (method, workers, seed, start); answer the seconds since the start."""
    segment = Segment.attach(NAME, writable=False)
    rows = array_on(segment.buffer, (count, *ROW), np.float32)
    kept = np.zeros((BATCH, *ROW), np.float32)
    for method, workers, seed, start in harness.orders(pipe):
        indices = np.random.default_rng(seed).integers(0, count, BATCH)
        mine = part_of(indices, count, rank, workers)
        out, first = kept[: len(mine)], int(indices[rank]) * (count - BATCH) // count
        start = max(start, time.perf_counter())
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


def rates_of(count, rounds):
    seeds = iter(range(10**9))
    with Segment.create(NAME, count * int(np.prod(ROW)) * 4) as segment:
        rows = array_on(segment.buffer, (count, *ROW), np.float32)
        rows[:] = np.random.default_rng(0).random((count, 1, 1, 1), "float32") + np.arange(ROW[2], dtype="float32")
        del rows
        try:
            with harness.Together(max(WORKERS), worker, count) as together:

                def rate(method, workers):
                    took = together.seconds(method, workers, next(seeds), count=workers)
                    return BATCH * int(np.prod(ROW)) * 4 / 1e9 / took

                kinds = [(method, 1) for method in ALONE] + [(method, n) for n in WORKERS for method in TOGETHER]
                return harness.interleaved({kind: lambda k=kind: rate(*k) for kind in kinds}, rounds, skip=1)
        finally:
            Segment.unlink(NAME)


def measure():
    options = harness.options(__doc__, rows=2000)  # 2000 are more than caches hold
    rates = rates_of(options.rows, 5 if options.quick else 40)
    results = {}
    for (method, workers), values in rates.items():
        row = {"method": method, "workers": workers, "GB/s": harness.median(values)}
        row |= {f"/ {other}": harness.ratio(values, rates[other, 1]) for other in ALONE}
        results[method, workers] = {**row, "/ copyto of as many": harness.ratio(values, rates["copyto", workers])}
    harness.table("256 random rows of 3x224x224 float32 together; medians", list(results.values()))
    for workers in WORKERS:
        row = results["excerpt", workers]
        for other in ALONE:  # the memory may not give more: copyto tells
            wanted = 0.9 * min(workers, len(os.sched_getaffinity(0)))
            harness.goal(f"{workers} workers against numpy.{other}, in one process", row[f"/ {other}"], wanted)
        harness.goal(f"{workers} workers against np.copyto in as many", row["/ copyto of as many"], 0.9)
    harness.save("excerpt", {"results": list(results.values())}, options)


if __name__ == "__main__":
    harness.main(measure)
