"""Collectives and the center on CUDA devices: all-reduce against torch.distributed, synchronizations of 75 MB.

    python benchmarks/device.py --devices cuda0 cuda1 --torch /path/to/python-with-torch

Our processes and torch's run at the same time on the same devices, and measure in turn. Printed are medians of the
slowest rank: of calls queued one after the other (what a training loop sees), and of single calls that are waited for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import report

from platoon_base.cli.launcher import worker_environment
from platoon_base.job import JobOptions, host_job
from platoon_base.shm.segments import Segment

WORKER = Path(__file__).with_name("device_worker.py")
SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
PARAMETER_BYTES = 4 * (10000 * 1024 + 2 * 1024 * 4096 + 4096 + 2048 + 2)


class Bench:
    """Tells the processes what to measure, and collects what they found."""

    def __init__(self, folder: Path, size: int, processes: list[subprocess.Popen]) -> None:
        self.folder, self.size, self.processes = folder, size, processes
        self.number = 0
        self.versions: dict[str, str] = {}
        self.failed = threading.Event()

    def send_order(self, what: dict) -> int:
        """Write the next order."""
        path = self.folder / f"go-{self.number}.json"
        path.with_suffix(".part").write_text(json.dumps(what))
        path.with_suffix(".part").rename(path)
        self.number += 1
        return self.number - 1

    def measure(self, timeout_s: float = 120, ranks: list[int] | None = None, **what) -> dict:
        """Let the processes measure; returns for each kind of time the slowest rank's median, in seconds."""
        number = self.send_order(what)
        paths = [self.folder / f"{what['who']}-{number}-{rank}.json" for rank in range(self.size)]
        deadline = time.monotonic() + timeout_s
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline or self.failed.is_set() or any(p.poll() for p in self.processes):
                raise SystemExit(
                    f"no answer to {what} within {timeout_s} s, or a process has failed; see {self.folder}"
                )
            time.sleep(0.005)
        found = [json.loads(path.read_text()) for path in paths]
        self.versions.update(found[0]["versions"])
        counted = [found[rank] for rank in ranks or range(self.size)]
        return {kind: max(report.median(f[kind]) for f in counted) for kind in ("queued", "host", "single")}


def all_reduces(bench: Bench, sizes: list[int], with_torch: bool) -> list[dict]:
    """Measure all sizes, the methods in turn, three rounds; medians of the rounds."""
    results = []
    methods = [("ours", "pygpu"), ("ours", "worker"), *([("torch", "torch")] if with_torch else [])]
    for nbytes in sizes:
        calls = 200 if nbytes <= 1 << 20 else 20
        rounds = [
            {
                method: bench.measure(who=who, what="all_reduce", method=method, bytes=nbytes, calls=calls, repeats=7)
                for who, method in methods
            }
            for _ in range(3)
        ]
        row = {"bytes": nbytes}
        for (_, method), kind in itertools.product(methods, ("queued", "host", "single")):
            row[f"{method} {kind} us"] = 1e6 * report.median([r[method][kind] for r in rounds])
        results.append(row)
        print(row, flush=True)
    return results


def synchronizations(bench: Bench) -> list[dict]:
    """Measure EASGD on 75 MB: one worker with a remote center, and all at once, one partition each; locked and not."""
    size = bench.size
    cases = [("all in the memory of another, one worker", 1, [1]), ("one partition each, one worker", size, [1])]
    cases.append((f"one partition each, all {size} at once", size, list(range(size))))
    if size > 2:
        cases.append((f"all in the memory of one, {size - 1} at once", 1, list(range(1, size))))
    results = []
    for (name, partitions, active), locked in itertools.product(cases, (True, False)):
        job = f"bench{os.getpid()}x{bench.number}"
        what = {"partitions": partitions, "active": active, "locked": locked, "name": job}
        found = bench.measure(who="ours", what="sync", calls=20, repeats=9, ranks=active, **what)
        Segment.unlink(f"/platoon-{os.getuid()}-{job}-center")
        row = {"case": name, "locked": locked, **{f"{kind} ms": 1e3 * found[kind] for kind in found}}
        row["GB/s"] = PARAMETER_BYTES / found["queued"] / 1e9
        results.append(row)
        print(row, flush=True)
    return results


def judge(size: int, reduced: list[dict], synced: list[dict], with_torch: bool) -> list[dict]:
    """Compare with the goals."""
    goals = []
    for row in reduced:
        kb = row["bytes"] / 1024
        extra = row["worker queued us"] - row["pygpu queued us"]
        if kb <= 64:
            goals.append(report.goal(f"worker over raw pygpu, {kb:.0f} KB, us", extra, 5, at_least=False))
        if with_torch and kb <= 64:
            ratio = row["worker queued us"] / row["torch queued us"]
            goals.append(report.goal(f"time over torch's, {kb:.0f} KB, {size} GPUs", ratio, 0.5, at_least=False))
        if with_torch and row["bytes"] == 256 << 20:
            ratio = row["torch queued us"] / row["worker queued us"]
            goals.append(report.goal(f"bandwidth over torch's, 256 MB, {size} GPUs", ratio, 0.98))
    for row in synced:
        remote, at_once = row["case"].endswith("another, one worker"), "each, all" in row["case"]
        if remote or at_once:
            name = f"EASGD of 75 MB, {row['case']}, {'locked' if row['locked'] else 'atomic'}, ms"
            goals.append(report.goal(name, row["queued ms"], 0.5 if remote else 1.0, at_least=False))
    return goals


def main() -> None:
    """Parse, measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", required=True)
    parser.add_argument("--torch", help="a Python in which torch.distributed works; left out, nothing is compared")
    parser.add_argument("--folder", type=Path, default=report.FOLDER, help="where the results go")
    options = parser.parse_args()
    size = len(options.devices)
    with tempfile.TemporaryDirectory() as name, host_job(size, JobOptions(center="device")) as job:
        folder = Path(name)
        for rank, device in enumerate(options.devices):
            environment = worker_environment(device, size, os.environ)
            environment["PYTHONPATH"] = os.pathsep.join([str(WORKER.parent.parent), environment.get("PYTHONPATH", "")])
            job.start(
                rank, [sys.executable, str(WORKER), name, "ours"], environment, options.folder / f"rank{rank}.log"
            )
        plain = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        others = [
            subprocess.Popen([options.torch, str(WORKER), name, "torch", str(rank), str(size)], env=plain)
            for rank in range(size if options.torch else 0)
        ]
        bench = Bench(folder, size, others)
        results: dict = {"devices": options.devices}

        def run() -> None:
            try:
                results["all_reduce"] = all_reduces(bench, SIZES, bool(options.torch))
                results["sync"] = synchronizations(bench)
            except SystemExit as exc:
                print(exc, flush=True)
            finally:
                bench.send_order({"what": "stop"})

        thread = threading.Thread(target=run)
        thread.start()
        job.serve()
        bench.failed.set()
        thread.join()
        for process in others:
            process.wait(timeout=60)
        results["versions"] = bench.versions
        results["goals"] = judge(size, results.get("all_reduce", []), results.get("sync", []), bool(options.torch))
        report.save(f"device{size}", results, options.folder)


if __name__ == "__main__":
    main()
