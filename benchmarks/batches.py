"""Mini-batches from one server to 1, 2 and 4 workers, in GB per second, and loading hidden behind training.

Against, in the same run and interleaved: np.copyto of the same bytes in one process that does nothing else, always into
the same memory and in turns into five arrays, as many as a worker has slots; and the
way of the original Platoon, a PUSH socket of ZeroMQ to whose other end each worker pulls (dtype and shape in JSON, then
the raw bytes, high-water mark 4). Workers look at nothing but the first number of a batch.

    python benchmarks/batches.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import report
import zmq

from platoon_base.data import BatchReader, BatchServer, load_ahead

MEGABYTES = (1, 16, 64)
WORKERS = (1, 2, 4)
WAYS = ("copyto", "copyto 5", "send", "in place", "all", "sockets")
AHEAD = 4
ROUND_S = 0.2
STEP_S, SHARE = 0.1, 0.8
TIMEOUT_S = 60


def read_shared(address: str, rank: int) -> None:
    """Read epochs from the server, and tell the end of each."""
    with BatchReader(address, rank=rank, ahead=AHEAD, timeout_s=TIMEOUT_S) as reader:
        while not reader.ended:
            for (x,) in reader:
                x[0]
            print("end", flush=True)


def read_sockets(address: str, rank: int) -> None:
    """Pull batches, and tell every batch."""
    context = zmq.Context()
    pull, done = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.rcvhwm = AHEAD
    pull.connect(address)
    done.sndhwm = 0
    done.connect(f"{address}-done")
    print("end", flush=True)
    while True:
        header, data = pull.recv_multipart(copy=False)
        about = json.loads(header.bytes)
        x = np.frombuffer(data.buffer, about["dtype"]).reshape(about["shape"])
        x[0]
        done.send(b"")


class Workers:
    """Reading processes."""

    def __init__(self, kind: str, address: str, count: int) -> None:
        words = [[sys.executable, __file__, kind, address, str(rank)] for rank in range(count)]
        self.processes = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in words]

    def await_end(self) -> None:
        for process in self.processes:
            if process.stdout.readline() != "end\n":
                raise RuntimeError("a worker failed")

    def seconds(self) -> float:
        """Return the processor's time that they have used."""
        return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


class Arms:
    """All ways to bring batches of one size to so many workers."""

    def __init__(self, folder: Path, megabytes: int, workers: int) -> None:
        self.x = np.random.default_rng(0).random(megabytes * 2**20 // 4, "float32")
        self.y = [np.zeros_like(self.x) for _ in range(AHEAD + 1)]
        self.count = workers
        address = str(folder / f"b{megabytes}-{workers}")
        self.server = BatchServer(address, readers=workers)
        self.shared = Workers("shared", address, workers)
        self.context = zmq.Context()
        self.push, self.done = self.context.socket(zmq.PUSH), self.context.socket(zmq.PULL)
        self.push.sndhwm, self.done.rcvhwm = AHEAD, 0
        self.push.bind(f"ipc://{address}z")
        self.done.bind(f"ipc://{address}z-done")
        self.done.rcvtimeo = self.push.sndtimeo = TIMEOUT_S * 1000
        self.sockets = Workers("sockets", f"ipc://{address}z", workers)
        self.sockets.await_end()
        self.server.end_epoch()
        self.shared.await_end()
        self.busy = dict.fromkeys([*WAYS, "send, workers", "sockets, workers"], 0.0)
        self.bytes = dict.fromkeys(WAYS, 0)
        self.number = {way: 4 * workers for way in WAYS}

    def once(self, way: str, number: int) -> None:
        """Bring batches to the workers until the last one has its last."""
        for i in range(number):
            if way == "copyto":
                np.copyto(self.y[0], self.x)
            elif way == "copyto 5":
                np.copyto(self.y[i % len(self.y)], self.x)
            elif way == "sockets":
                about = json.dumps({"dtype": self.x.dtype.str, "shape": self.x.shape}).encode()
                self.push.send(about, zmq.SNDMORE)
                self.push.send(self.x, copy=False)
            elif way == "in place":
                with self.server.in_place((self.x.shape, self.x.dtype), timeout_s=TIMEOUT_S) as (slot,):
                    slot[0] = 1
            else:
                self.server.send((self.x,), "all" if way == "all" else None, timeout_s=TIMEOUT_S)
        if way == "sockets":
            for _ in range(number):
                self.done.recv()
        elif not way.startswith("copyto"):
            self.server.end_epoch()
            self.shared.await_end()

    def measure(self, way: str, seconds: float) -> float:
        """Return GB per second that arrive at each worker."""
        number = self.number[way]
        readers = {"send": self.shared, "sockets": self.sockets}.get(way)
        busy = readers.seconds() if readers else 0.0
        begin, begin_busy = time.perf_counter(), time.process_time()
        self.once(way, number)
        took, took_busy = time.perf_counter() - begin, time.process_time() - begin_busy
        self.busy[way] += took_busy
        self.bytes[way] += self.x.nbytes * number
        if readers:
            self.busy[f"{way}, workers"] += readers.seconds() - busy
        self.number[way] = max(4 * self.count, min(100_000, int(number * seconds / took)))
        share = 1 if way in ("copyto", "copyto 5", "all") else self.count
        return self.x.nbytes * number / took / share / 1e9

    def close(self) -> None:
        self.server.end()
        self.server.close()
        self.shared.close()
        self.sockets.close()
        self.context.destroy(linger=0)


def rates(megabytes: int, workers: int, rounds: int, seconds: float) -> dict:
    """Return the median of GB/s at each worker, and of the ratios to copyto within each round."""
    with tempfile.TemporaryDirectory() as folder:
        arms = Arms(Path(folder), megabytes, workers)
        try:
            found = [{way: arms.measure(way, seconds) for way in WAYS} for _ in range(rounds + 2)][2:]
        finally:
            arms.close()
    row = {way: report.median([each[way] for each in found]) for way in WAYS if way != "in place"}
    pairs = [("copyto 5", "copyto"), ("send", "copyto"), ("send", "copyto 5"), ("all", "copyto"), ("sockets", "copyto")]
    ratios = {
        f"{a} / {b}": report.median([each[a] / each[b] for each in found]) for a, b in [*pairs, ("send", "sockets")]
    }
    in_place = report.median([megabytes * 2**20 / each["in place"] / workers / 1e3 for each in found])
    busy = {
        f"ms/GB, {name}": 1e12 * seconds / arms.bytes[name.partition(",")[0]]
        for name, seconds in arms.busy.items()
        if name not in ("in place", "all")
    }
    return {"MB": megabytes, "workers": workers, **row, **ratios, "in place, us": in_place, **busy}


def compute(seconds: float, a: np.ndarray) -> None:
    """Be busy for so long, by the processor's clock of this thread, as a training step on one core is."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        np.sqrt(a, out=a)


def minibatches(count: int):
    """Take 0.8 of a step's time for each batch of 16 MB, part of it for writing the batch."""
    x, a = np.zeros((32, 3, 209, 209), "float32"), np.ones(10_000)
    for k in range(count):
        begin = time.thread_time()
        x.fill(k)
        compute(STEP_S * SHARE - (time.thread_time() - begin), a)
        yield x, np.full(32, k)


def hidden(count: int, rounds: int) -> dict:
    """Return the milliseconds of a step without loading, with loading in the loop, and with loading ahead."""
    a = np.ones(10_000)

    def loop(batches) -> float:
        times = []
        for batch in batches:
            times.append(time.perf_counter())
            if batch is not None:
                batch[0][0, 0, 0, 0] == batch[1][0]  # noqa: B015
            compute(STEP_S, a)
        times.append(time.perf_counter())
        return report.median(np.diff(times[3:]))  # the first batch cannot be hidden

    found = [
        {
            "none": loop([None] * count),
            "in the loop": loop(minibatches(count)),
            "ahead": loop(load_ahead(lambda: minibatches(count))),
        }
        for _ in range(rounds)
    ]
    row = {way: 1e3 * float(report.median([each[way] for each in found])) for way in found[0]}
    more = {
        way: 100 * float(report.median([each[way] / each["none"] - 1 for each in found]))
        for way in ("in the loop", "ahead")
    }
    return {**row, **{f"{way}, % more": value for way, value in more.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, small batches; nothing is saved")
    parser.add_argument("--save", default="batches", help="name of the file of results")
    parser.add_argument("--rounds", type=int, default=9, help="of each way; medians count  [9]")
    options = parser.parse_args()
    quick = options.quick
    rounds, seconds = (2, 0.05) if quick else (options.rounds, ROUND_S)
    sizes = (1,) if quick else MEGABYTES
    rows = [rates(megabytes, workers, rounds, seconds) for megabytes in sizes for workers in WORKERS]
    names = [name for name in rows[0] if "ms/GB" not in name]
    report.table("GB/s that arrive at each worker", names, [[row[name] for name in names] for row in rows], 200)
    names = ["MB", "workers", *(name for name in rows[0] if "ms/GB" in name)]
    report.table("processor's ms for each GB", names, [[row[name] for name in names] for row in rows], 200)
    step = hidden(6 if quick else 25, 1 if quick else 3)
    report.table("ms a step of 100 ms", list(step), [list(step.values())])
    goals = [
        report.goal(
            f"{row['MB']} MB, {row['workers']} workers, to each: the same batch, or one worker's own; of copyto",
            max(row["send / copyto"], row["all / copyto"]),
            0.5,
        )
        for row in rows
    ]
    goals += [
        report.goal(
            f"{row['MB']} MB, {row['workers']} workers, own batches, all workers together, of copyto",
            row["send / copyto"] * row["workers"],
            0.5,
        )
        for row in rows
    ]
    goals.append(report.goal("loading of 0.8 of a step ahead, % more", step["ahead, % more"], 5, at_least=False))
    if not quick:
        report.save(options.save, {"rows": rows, "step": step, "goals": goals})


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in ("shared", "sockets"):
        (read_shared if sys.argv[1] == "shared" else read_sockets)(sys.argv[2], int(sys.argv[3]))
    else:
        main()
