"""Collectives and the center on CUDA devices: all-reduce against torch.distributed, synchronizations of 75 MB.

    python benchmarks/device.py --devices cuda0 cuda1 --torch /path/to/python-with-torch

Our processes and torch's run at the same time on the same devices, and measure in turn. Printed are medians of the
slowest rank: of calls queued one after the other (what a training loop sees), and of single calls that are waited for.
Without --torch nothing is compared.
"""

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import harness
import numpy as np

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
# The parameters of the LSTM of lstm.py: 75 MB.
SHAPES = [(10000, 1024), (1024, 4096), (1024, 4096), (4096,), (1024, 2), (2,)]
PARAMETER_BYTES = 4 * sum(int(np.prod(shape)) for shape in SHAPES)
KINDS = ("queued", "host", "single")


# The processes: go-<n>.json names a measurement, <who>-<n>-<rank>.json gets the result.
class Torch:
    def __init__(self, given):
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.rank = torch, dist, given.rank
        torch.cuda.set_device(given.rank)
        store = f"file://{given.folder}/torch"
        dist.init_process_group("nccl", init_method=store, rank=given.rank, world_size=given.size)
        self.versions = {"torch": torch.__version__, "nccl of torch": ".".join(map(str, torch.cuda.nccl.version()))}
        self.meet = self.close_center = lambda: None

    def prepare(self, what):
        """Return what one call is, and what waits for all of them."""
        x = self.torch.zeros(what["bytes"] // 4, device="cuda")
        return (lambda: self.dist.all_reduce(x)), self.torch.cuda.synchronize

    def close(self):
        self.dist.destroy_process_group()


class Ours:
    """pygpu's collectives, bare and through the worker, and the center in the devices' memory."""

    def __init__(self, given):
        import pygpu
        from pygpu.collectives import GpuComm, GpuCommCliqueId

        from platoon_base import connect

        self.context, self.worker = pygpu.init(os.environ["PLATOON_DEVICE"]), connect()
        self.zeros = lambda shape: pygpu.gpuarray.zeros(shape, "float32", context=self.context)
        self.rank, self.close = self.worker.global_rank, self.worker.close
        self.worker.all_reduce(self.zeros((1,)))
        clique = np.frombuffer(GpuCommCliqueId(context=self.context).comm_id, np.uint8).copy()
        self.worker.broadcast([clique])
        clique = GpuCommCliqueId(context=self.context, comm_id=bytearray(clique))
        self.bare = GpuComm(clique, self.worker.global_size, self.rank)
        self.versions = {"pygpu": pygpu.__version__}
        self.meet = lambda: self.worker.barrier("round")

    def prepare(self, what):
        """Return what one call is, and what waits for all of them."""
        self.close_center = lambda: None
        if what["what"] == "sync":
            return self.prepare_center(what)
        x = self.zeros((what["bytes"] // 4,))
        by = self.bare if what["method"] == "pygpu" else self.worker
        return (lambda: by.all_reduce(x, "sum", x)), (lambda: np.asarray(x[:1]))

    def prepare_center(self, what):
        from platoon_base import EASGD
        from platoon_base.centers.device import DeviceCenters
        from platoon_base.devices.runtime import runtime_of
        from platoon_base.layout import Layout

        worker, rule, arrays = self.worker, EASGD(0.5), [self.zeros(shape) for shape in SHAPES]
        runtime, layout = runtime_of(self.context), Layout.of(arrays)
        centers = DeviceCenters(what["name"], what["partitions"], runtime, lambda rank: False, lambda rank: 0)
        if self.rank == 0:
            center = centers.create(layout, rule, 0)
            center.write(arrays, True, 60)
        worker.barrier("made")
        if self.rank:
            center = centers.attach(layout, rule, self.rank)
        worker.barrier("attached")

        def close():
            worker.barrier("measured")
            center.close()
            worker.barrier("closed")

        self.close_center = close
        call = (lambda: center.sync(rule, arrays, what["locked"], 60)) if self.rank in what["active"] else lambda: None
        return call, lambda: np.asarray(arrays[-1])


def times_of(call, wait, calls, repeats, meet):
    found = {kind: [] for kind in KINDS}
    for _ in range(3):
        call()
    wait()
    for _ in range(repeats):
        meet()
        began = time.perf_counter()
        found["host"].append(harness.seconds(call, calls))
        wait()
        found["queued"].append((time.perf_counter() - began) / calls)
    for _ in range(repeats):
        meet()
        found["single"].append(harness.seconds(lambda: (call(), wait())))
    return found


def work(given):
    bench = Torch(given) if given.who == "torch" else Ours(given)
    for number in itertools.count():
        path = given.folder / f"go-{number}.json"
        while not path.exists():
            time.sleep(0.002)
        what = json.loads(path.read_text())
        if what["what"] == "stop":
            break
        if what["who"] == given.who:
            call, wait = bench.prepare(what)
            found = times_of(call, wait, what["calls"], what["repeats"], bench.meet)
            bench.close_center()
            target = given.folder / f"{given.who}-{number}-{bench.rank}.json"
            harness.write(target, {**found, "versions": bench.versions})
    bench.close()


# The benchmark.
class Bench:
    def __init__(self, folder, size, processes):
        self.folder, self.size, self.processes, self.number = folder, size, processes, 0
        self.versions, self.failed = {}, threading.Event()

    def order(self, what):
        harness.write(self.folder / f"go-{self.number}.json", what)
        self.number += 1

    def measure(self, ranks=None, **what):
        paths = [self.folder / f"{what['who']}-{self.number}-{rank}.json" for rank in range(self.size)]
        self.order(what)
        deadline = time.monotonic() + 120
        while not all(path.exists() for path in paths):
            if time.monotonic() > deadline or self.failed.is_set() or any(p.poll() for p in self.processes):
                raise SystemExit(f"no answer to {what}: a process FAILED, see {self.folder}")
            time.sleep(0.005)
        found = [json.loads(path.read_text()) for path in paths]
        self.versions.update(found[0]["versions"])
        counted = [found[rank] for rank in ranks or range(self.size)]
        return {kind: max(harness.median(each[kind]) for each in counted) for kind in KINDS}


def all_reduces(bench, with_torch):
    rows, methods = [], [("ours", "pygpu"), ("ours", "worker"), *([("torch", "torch")] if with_torch else [])]
    for size in SIZES:
        what = {"what": "all_reduce", "bytes": size, "calls": 200 if size <= 1 << 20 else 20, "repeats": 7}
        calls = {method: lambda w=who, m=method, a=what: bench.measure(who=w, method=m, **a) for who, method in methods}
        found, row = harness.interleaved(calls, 3), {"KB": size / 1024}
        for method, kind in itertools.product(found, KINDS):
            row[f"{method} {kind} us"] = 1e6 * harness.median(each[kind] for each in found[method])
        rows.append(row)
    return rows


def synchronizations(bench):
    size, rows = bench.size, []
    cases = [("all in the memory of another, one worker", 1, [1]), ("one partition each, one worker", size, [1])]
    cases.append((f"one partition each, all {size} at once", size, list(range(size))))
    if size > 2:
        cases.append((f"all in the memory of one, {size - 1} at once", 1, list(range(1, size))))
    for (case, partitions, active), locked in itertools.product(cases, (True, False)):
        what = {"partitions": partitions, "active": active, "locked": locked, "calls": 20, "repeats": 9}
        what["name"] = f"/platoon-{os.getuid()}-bench{os.getpid()}x{bench.number}-center"
        found = bench.measure(who="ours", what="sync", ranks=active, **what)
        from platoon_base.shm.segments import Segment

        Segment.unlink(what["name"])
        row = {"case": case, "locked": locked, **{f"{kind} ms": 1e3 * found[kind] for kind in found}}
        rows.append({**row, "GB/s": PARAMETER_BYTES / found["queued"] / 1e9})
    return rows


def judge(size, reduced, synced):
    for row in reduced:
        kb, ours, torch = row["KB"], row["worker queued us"], row.get("torch queued us")
        if kb <= 64:
            harness.goal(f"worker over raw pygpu, {kb:.0f} KB, us", ours - row["pygpu queued us"], 5, at_least=False)
        if torch and kb <= 64:
            harness.goal(f"time over torch's, {kb:.0f} KB, {size} GPUs", ours / torch, 0.5, at_least=False)
        if torch and kb == 256 << 10:
            harness.goal(f"bandwidth over torch's, 256 MB, {size} GPUs", torch / ours, 0.98)
    for row in synced:
        remote = row["case"].endswith("another, one worker")
        if remote or "each, all" in row["case"]:
            name = f"EASGD of 75 MB, {row['case']}, {'locked' if row['locked'] else 'atomic'}, ms"
            harness.goal(name, row["queued ms"], 0.5 if remote else 1.0, at_least=False)


def measure():
    from platoon_base.cli.launcher import worker_environment
    from platoon_base.job import JobOptions, host_job

    options = harness.options(__doc__, devices=["cuda0", "cuda1"], torch=None)
    size, results = len(options.devices), {"devices": options.devices, "all_reduce": [], "sync": []}
    with tempfile.TemporaryDirectory() as name, host_job(size, JobOptions(center="device")) as job:
        told = {"folder": name, "who": "ours", "size": size}
        for rank, device in enumerate(options.devices):
            env = worker_environment(device, size, os.environ)
            env["PYTHONPATH"] = os.pathsep.join([str(harness.ROOT), env.get("PYTHONPATH", "")])
            env[harness.GIVEN] = json.dumps(told)
            job.start(rank, [sys.executable, __file__], env, Path(name, f"rank{rank}.log"))
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LD_LIBRARY_PATH")}
        others = []
        for rank in range(size if options.torch else 0):
            mine = json.dumps({**told, "who": "torch", "rank": rank})
            others.append(subprocess.Popen([options.torch, __file__], env={**env, harness.GIVEN: mine}))
        bench = Bench(Path(name), size, others)

        def run():
            try:
                results["all_reduce"] = all_reduces(bench, bool(options.torch))
                results["sync"] = synchronizations(bench)
            except SystemExit as exc:
                print(exc, flush=True)
            finally:
                bench.order({"what": "stop"})

        thread = threading.Thread(target=run)
        thread.start()
        job.serve()
        bench.failed.set()
        thread.join()
        for process in others:
            process.wait(timeout=60)
    harness.table("All-reduce", results["all_reduce"], 200)
    harness.table("EASGD of 75 MB", results["sync"])
    judge(size, results["all_reduce"], results["sync"])
    harness.save(f"device{size}", {**results, "versions": bench.versions}, options)


if __name__ == "__main__":
    harness.main(measure, work)
