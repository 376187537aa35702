"""All-reduce (float32, sum, in place): the host's collective against mpi4py with OpenMPI, microseconds a call.

Both run in the same processes, in alternation; the time of a call is that of its slowest rank. mpirun starts the
processes, with its own defaults: it binds 2 ranks to a core each, and ranks that are more than the cores to none.

    python benchmarks/all_reduce.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata

import numpy as np
import report

from platoon_base.collectives.host import HostCollective

RANKS = (2, 4)
SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 128 << 20)  # bytes
ROUND_S = 0.02  # that the calls of one method take in one round, about
TIMEOUT_S = 60


class Patient:
    """The other ranks all come: mpirun ends the others if one dies."""

    def why_absent(self, ranks) -> str:
        return ""


# ---- CPU: the processes that mpirun starts --------------------------------------------------------------------------


def host_worker(seconds: float) -> None:
    """Measure all sizes as one rank; rank 0 prints seconds a call, for each size and method one value a round."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    name = comm.bcast(f"/platoon-{os.getuid()}-bench{os.getpid()}-reduce")
    ranks = range(comm.size)
    if comm.rank == 0:
        ours = HostCollective.create(name, ranks, 0, Patient())
    comm.Barrier()
    if comm.rank != 0:
        ours = HostCollective.attach(name, ranks, comm.rank, Patient())
    comm.Barrier()
    ours.unlink()
    calls = {
        "platoon": lambda x: ours.all_reduce(x, out=x, timeout_s=TIMEOUT_S),
        "openmpi": lambda x: comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM),
    }
    times = {size: host_times(comm, calls, size, seconds) for size in SIZES}
    ours.close()
    if comm.rank == 0:
        print(json.dumps({"library": MPI.Get_library_version().partition(",")[0], "times": times}))


def host_times(comm, calls: dict, size: int, seconds: float) -> dict[str, list[float]]:
    """Return seconds a call of the slowest rank, one value a round."""
    x = np.zeros(size // 4, np.float32)
    repetitions, rounds = {}, 0
    for method, call in calls.items():
        x.fill(comm.rank)
        call(x)
        if not (x == sum(range(comm.size))).all():
            raise SystemExit(f"{method} gave a wrong sum of {size} bytes")
        x.fill(0)
        for _ in range(3):
            took = timed(comm, call, x, 3)
        repetitions[method] = max(1, comm.bcast(int(ROUND_S / took)))
        rounds += 2 * max(ROUND_S, took)
    rounds = max(7, comm.bcast(int(seconds / rounds)))
    mine: dict[str, list[float]] = {method: [] for method in calls}
    for _ in range(rounds):
        for method, call in calls.items():
            mine[method].append(timed(comm, call, x, repetitions[method]))
    return {method: np.max(comm.allgather(values), axis=0).tolist() for method, values in mine.items()}


def timed(comm, call, x, repetitions: int) -> float:
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(repetitions):
        call(x)
    return (time.perf_counter() - start) / repetitions


def host_run(ranks: int, seconds: float) -> tuple[str, dict[int, dict[str, list[float]]]]:
    """Run `host_worker` under mpirun; return the MPI library's version and what was measured."""
    options = ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    command = ["mpirun", *options, "-n", str(ranks), sys.executable, __file__, "--worker", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=1800, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["library"], {int(size): methods for size, methods in answer["times"].items()}


def host_benchmark(quick: bool) -> dict:
    """Measure, print; return what is to be saved."""
    results, rows = [], []
    for ranks in RANKS:
        library, measured = host_run(ranks, 1.0 if quick else 8.0)
        for size, times in measured.items():
            middle = {method: report.median(values) * 1e6 for method, values in times.items()}
            # Each round's own ratio: what disturbs the machine disturbs both methods of a round alike.
            ratio = report.median([a / b for a, b in zip(times["openmpi"], times["platoon"])])
            result = {"ranks": ranks, "bytes": size, "microseconds": middle, "speed_ratio": ratio}
            results.append({**result, "rounds": len(times["platoon"])})
            rows.append([ranks, f"{size >> 10} KB", *(f"{value:.1f}" for value in middle.values()), ratio])
    headings = ["ranks", "size", "platoon us", "openmpi us", "openmpi / platoon"]
    report.table("All-reduce of float32, in place; medians", headings, rows)
    of = {(r["ranks"], r["bytes"]): r["speed_ratio"] for r in results}
    goals = []
    for ranks in RANKS:
        goals.append(report.goal(f"{ranks} ranks, 64 KB, speed against OpenMPI", of[ranks, 64 << 10], 0.5))
        for size in (1 << 20, 16 << 20, 128 << 20):
            goals.append(report.goal(f"{ranks} ranks, {size >> 20} MB, speed against OpenMPI", of[ranks, size], 1.0))
    reference = f"{library}, mpi4py {metadata.version('mpi4py')}"
    return {"reference": reference, "results": results, "goals": goals}


def host_problem() -> str:
    """Return why there is nothing to compare with; empty if there is."""
    if shutil.which("mpirun") is None:
        return "there is no mpirun: install openmpi-bin and libopenmpi-dev, then make setup"
    try:
        metadata.version("mpi4py")
    except metadata.PackageNotFoundError:
        return "there is no mpi4py: install libopenmpi-dev, then make setup"
    return ""


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds; nothing is saved")
    parser.add_argument("--worker", type=float, metavar="SECONDS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        host_worker(options.worker)
        return
    problem = host_problem()
    if problem:
        print(f"skipped: {problem}")
        return
    results = host_benchmark(options.quick)
    if not options.quick:
        report.save("all_reduce", results)


if __name__ == "__main__":
    main()
