"""One process of benchmarks/device.py: measures what it is told to, on one device, by our collectives or by torch's.

It is told by files: ``<folder>/go-<n>.json`` names a measurement, ``<folder>/<who>-<n>-<rank>.json`` gets the result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

FOLDER, WHO = Path(sys.argv[1]), sys.argv[2]


class Torch:
    """torch.distributed over NCCL."""

    def __init__(self, rank: int, size: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.rank = rank
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl", init_method=f"file://{FOLDER}/torch", rank=rank, world_size=size)
        self.methods = ["torch"]
        self.versions = {"torch": torch.__version__, "nccl of torch": ".".join(map(str, torch.cuda.nccl.version()))}

    def prepare(self, what: dict):
        """Return what one call is, and what waits for all of them."""
        x = self.torch.zeros(what["bytes"] // 4, device="cuda")
        return (lambda: self.dist.all_reduce(x)), self.torch.cuda.synchronize

    def close(self) -> None:
        """Leave the group."""
        self.dist.destroy_process_group()


class Ours:
    """pygpu's collectives, bare and through the worker, and the center in the devices' memory."""

    def __init__(self) -> None:
        import pygpu
        from pygpu import gpuarray
        from pygpu.collectives import GpuComm, GpuCommCliqueId

        from platoon_base import connect

        self.gpuarray = gpuarray
        self.context = pygpu.init(os.environ["PLATOON_DEVICE"])
        self.worker = connect()
        self.rank = self.worker.global_rank
        self.worker.all_reduce(self._new(4))
        clique = np.frombuffer(GpuCommCliqueId(context=self.context).comm_id, np.uint8).copy()
        self.worker.broadcast([clique])
        clique = GpuCommCliqueId(context=self.context, comm_id=bytearray(clique))
        self.bare = GpuComm(clique, self.worker.global_size, self.rank)
        self.versions = {"pygpu": pygpu.__version__}

    def _new(self, nbytes: int):
        return self.gpuarray.zeros((nbytes // 4,), "float32", context=self.context)

    def prepare(self, what: dict):
        """Return what one call is, and what waits for all of them."""
        if what["what"] == "sync":
            return self._prepare_center(what)
        x = self._new(what["bytes"])
        if what["method"] == "pygpu":
            return (lambda: self.bare.all_reduce(x, "sum", x)), (lambda: np.asarray(x[:1]))
        return (lambda: self.worker.all_reduce(x, "sum", x)), (lambda: np.asarray(x[:1]))

    def _prepare_center(self, what: dict):
        from platoon_base import EASGD
        from platoon_base.centers.device import DeviceCenters
        from platoon_base.devices.runtime import runtime_of
        from platoon_base.layout import Layout

        worker, rule = self.worker, EASGD(0.5)
        # The parameters of the LSTM of benchmarks/lstm.py: 75 MB.
        shapes = [(10000, 1024), (1024, 4096), (1024, 4096), (4096,), (1024, 2), (2,)]
        arrays = [self.gpuarray.zeros(shape, "float32", context=self.context) for shape in shapes]
        layout = Layout.of(arrays)
        partitions = what["partitions"]
        name = f"/platoon-{os.getuid()}-{what['name']}-center"
        centers = DeviceCenters(name, partitions, runtime_of(self.context), lambda rank: False, lambda rank: 0)
        if self.rank == 0:
            center = centers.create(layout, rule, 0)
            center.write(arrays, True, 60)
        worker.barrier("made")
        if self.rank:
            center = centers.attach(layout, rule, self.rank)
        worker.barrier("attached")
        self.close_center = center.close
        active = self.rank in what["active"]
        locked = what["locked"]
        wait = lambda: np.asarray(arrays[-1])  # noqa: E731
        return (lambda: center.sync(rule, arrays, locked, 60)) if active else (lambda: None), wait

    def close(self) -> None:
        """Leave the job."""
        self.worker.close()


def measure(call, wait, calls: int, repeats: int, meet) -> dict:
    """Return the seconds of a call, each repeat's: queued one after the other, as the host sees it, and one by one."""
    for _ in range(3):
        call()
    wait()
    queued, host, single = [], [], []
    for _ in range(repeats):
        meet()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        host.append((time.perf_counter() - began) / calls)
        wait()
        queued.append((time.perf_counter() - began) / calls)
    for _ in range(repeats):
        meet()
        began = time.perf_counter()
        call()
        wait()
        single.append(time.perf_counter() - began)
    return {"queued": queued, "host": host, "single": single}


def main() -> None:
    """Serve until told to stop."""
    if WHO == "torch":
        bench = Torch(int(sys.argv[3]), int(sys.argv[4]))
    else:
        bench = Ours()
    number = 0
    while True:
        path = FOLDER / f"go-{number}.json"
        while not path.exists():
            time.sleep(0.002)
        what = json.loads(path.read_text())
        if what["what"] == "stop":
            break
        if what["who"] == WHO:
            call, wait = bench.prepare(what)
            meet = lambda: None  # noqa: E731
            if WHO == "ours":
                meet = lambda: bench.worker.barrier("round")  # noqa: E731
            found = {**measure(call, wait, what["calls"], what["repeats"], meet), "versions": bench.versions}
            if what["what"] == "sync":
                bench.worker.barrier("measured")
                bench.close_center()
                bench.worker.barrier("closed")
            target = FOLDER / f"{WHO}-{number}-{bench.rank}.json"
            target.with_suffix(".part").write_text(json.dumps(found))
            target.with_suffix(".part").rename(target)
        number += 1
    bench.close()


if __name__ == "__main__":
    main()
