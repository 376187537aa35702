"""All-reduce (float32, sum, in place): the host's collective against mpi4py with OpenMPI, microseconds a call.

Both run in the same processes, in alternation; the time of a call is that of its slowest rank. mpirun starts the
processes, with its own defaults: it binds 2 ranks to a core each, and ranks that are more than the cores to none.

    python benchmarks/all_reduce.py [--quick]
"""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata, util

import harness
import numpy as np

from platoon_base.collectives.host import HostCollective

RANKS = (2, 4)
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20)  # bytes
ROUND_S = 0.02  # that the calls of one method take in one round, about
TIMEOUT_S = 60


def work(given):
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    name = comm.bcast(f"/platoon-{os.getuid()}-bench{os.getpid()}-reduce")
    ranks = range(comm.size)
    if comm.rank == 0:
        ours = HostCollective.create(name, ranks, 0, harness.Patient())
    comm.Barrier()
    if comm.rank != 0:
        ours = HostCollective.attach(name, ranks, comm.rank, harness.Patient())
    comm.Barrier()
    ours.unlink()
    calls = {
        "platoon": lambda x: ours.all_reduce(x, out=x, timeout_s=TIMEOUT_S),
        "openmpi": lambda x: comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM),
    }
    times = {size: times_of(comm, calls, size, given.seconds) for size in SIZES}
    ours.close()
    if comm.rank == 0:
        print(json.dumps({"library": MPI.Get_library_version().partition(",")[0], "times": times}))


def times_of(comm, calls, size, seconds):
    x = np.zeros(size // 4, np.float32)

    def timed(call, repetitions):
        comm.Barrier()
        return harness.seconds(lambda: call(x), repetitions)

    repetitions, a_round = {}, 0.0
    for method, call in calls.items():
        x.fill(comm.rank)
        call(x)
        if not (x == sum(range(comm.size))).all():
            raise SystemExit(f"{method} gave a wrong sum of {size} bytes")
        x.fill(0)
        took = [timed(call, 3) for _ in range(3)][-1]
        repetitions[method] = max(1, comm.bcast(int(ROUND_S / took)))
        a_round += 2 * max(ROUND_S, took)
    rounds = max(7, comm.bcast(int(seconds / a_round)))
    timings = {method: lambda m=method: timed(calls[m], repetitions[m]) for method in calls}
    mine = harness.interleaved(timings, rounds)
    return {method: np.max(comm.allgather(values), axis=0).tolist() for method, values in mine.items()}


def run(ranks, seconds):
    words = ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []
    words += ["--allow-run-as-root"] if os.geteuid() == 0 else []
    command = ["mpirun", *words, "-n", str(ranks), sys.executable, __file__]
    env = {**os.environ, harness.GIVEN: json.dumps({"seconds": seconds, "folder": ""})}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, check=True, env=env)
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["library"], {int(size): methods for size, methods in answer["times"].items()}


def measure():
    options = harness.options(__doc__)
    if shutil.which("mpirun") is None or util.find_spec("mpi4py") is None:
        print("skipped: there is no mpirun or no mpi4py: install openmpi-bin and libopenmpi-dev, then make setup")
        return
    results = []
    for ranks in RANKS:
        library, measured = run(ranks, 1.0 if options.quick else 8.0)
        for size, times in measured.items():
            middle = {f"{method} us": 1e6 * harness.median(values) for method, values in times.items()}
            row = {"ranks": ranks, "bytes": size, **middle, "rounds": len(times["platoon"])}
            results.append({**row, "openmpi / platoon": harness.ratio(times["openmpi"], times["platoon"])})
    harness.table("All-reduce of float32, in place; medians", results)
    for row in results:
        if row["bytes"] > 4 << 10:
            text = f"{row['ranks']} ranks, {row['bytes'] >> 10} KB, speed against OpenMPI"
            harness.goal(text, row["openmpi / platoon"], 0.5 if row["bytes"] == 64 << 10 else 1.0)
    reference = f"{library}, mpi4py {metadata.version('mpi4py')}"
    harness.save("all_reduce", {"reference": reference, "results": results}, options)


if __name__ == "__main__":
    harness.main(measure, work)
