"""Mini-batches from one server to 1, 2 and 4 workers, in GB per second, and loading hidden behind training.

Against, in the same run and interleaved: np.copyto of the same bytes in one process that does nothing else, always into
the same memory and in turns into five arrays, as many as a worker has slots; and the
way of the original Platoon, a PUSH socket of ZeroMQ to whose other end each worker pulls (dtype and shape in JSON, then
the raw bytes, high-water mark 4). Workers look at nothing but the first number of a batch.

    python benchmarks/batches.py [--quick] [--rounds 9]
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness
import numpy as np
import psutil
import zmq

from platoon_base.data import BatchReader, BatchServer, load_ahead

MEGABYTES, WORKERS = (1, 16, 64), (1, 2, 4)
WAYS = ("copyto", "copyto 5", "send", "in place", "all", "sockets")
AHEAD, ROUND_S, TIMEOUT_S = 4, 0.2, 60
STEP_S, SHARE = 0.1, 0.8


def read_shared(address, rank):
    with BatchReader(address, rank=rank, ahead=AHEAD, timeout_s=TIMEOUT_S) as reader:
        while not reader.ended:
            for (x,) in reader:
                x[0]
            print("end", flush=True)


def read_sockets(address, rank):
    context = zmq.Context()
    pull, done = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    pull.rcvhwm, done.sndhwm = AHEAD, 0
    pull.connect(address)
    done.connect(f"{address}-done")
    print("end", flush=True)
    while True:
        header, data = pull.recv_multipart(copy=False)
        about = json.loads(header.bytes)
        np.frombuffer(data.buffer, about["dtype"]).reshape(about["shape"])[0]
        done.send(b"")


class Workers:
    def __init__(self, kind, address, count):
        words = [[sys.executable, __file__, kind, address, str(rank)] for rank in range(count)]
        self.processes = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in words]

    def await_end(self):
        for process in self.processes:
            if process.stdout.readline() != "end\n":
                raise RuntimeError("a worker FAILED")

    def seconds(self):
        return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process in self.processes)

    def close(self):
        for process in self.processes:
            process.kill()
            process.communicate()


class Arms:
    def __init__(self, folder, megabytes, workers):
        self.x = np.random.default_rng(0).random(megabytes * 2**20 // 4, "float32")
        self.y = [np.zeros_like(self.x) for _ in range(AHEAD + 1)]
        self.count, address = workers, f"{folder}/b{megabytes}-{workers}"
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
        self.busy = dict.fromkeys(["copyto", "copyto 5", "send", "sockets", "send, workers", "sockets, workers"], 0.0)
        self.bytes = dict.fromkeys(WAYS, 0)
        self.number = {way: 4 * workers for way in WAYS}

    def once(self, way, number):
        """Bring batches to the workers until the last one has its last."""
        for i in range(number):
            if way.startswith("copyto"):
                np.copyto(self.y[0 if way == "copyto" else i % len(self.y)], self.x)
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

    def rate(self, way, seconds):
        number, readers = self.number[way], {"send": self.shared, "sockets": self.sockets}.get(way)
        busy, own = readers.seconds() if readers else 0.0, time.process_time()
        took = harness.seconds(lambda: self.once(way, number))
        self.bytes[way] += self.x.nbytes * number
        if way in self.busy:
            self.busy[way] += time.process_time() - own
        if readers:
            self.busy[f"{way}, workers"] += readers.seconds() - busy
        self.number[way] = max(4 * self.count, min(100_000, int(number * seconds / took)))
        share = 1 if way in ("copyto", "copyto 5", "all") else self.count
        return self.x.nbytes * number / took / share / 1e9

    def close(self):
        self.server.end()
        self.server.close()
        self.shared.close()
        self.sockets.close()
        self.context.destroy(linger=0)


def rates_of(megabytes, workers, rounds, seconds):
    about = {"MB": megabytes, "workers": workers}
    with tempfile.TemporaryDirectory() as folder:
        arms = Arms(Path(folder), megabytes, workers)
        try:
            found = harness.interleaved({w: lambda w=w: arms.rate(w, seconds) for w in WAYS}, rounds, skip=2)
        finally:
            arms.close()
    row = {**about, **{way: harness.median(values) for way, values in found.items() if way != "in place"}}
    pairs = [("copyto 5", "copyto"), ("send", "copyto"), ("send", "copyto 5"), ("all", "copyto"), ("sockets", "copyto")]
    row |= {f"{a} / {b}": harness.ratio(found[a], found[b]) for a, b in [*pairs, ("send", "sockets")]}
    row["in place, us"] = harness.median(megabytes * 2**20 / rate / workers / 1e3 for rate in found["in place"])
    return row, {**about, **{name: 1e12 * s / arms.bytes[name.partition(",")[0]] for name, s in arms.busy.items()}}


def compute(seconds, a):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        np.sqrt(a, out=a)


def minibatches(count):
    """Take 0.8 of a step's time for each batch of 16 MB, part of it for writing the batch."""
    x, a = np.zeros((32, 3, 209, 209), "float32"), np.ones(10_000)
    for k in range(count):
        begin = time.thread_time()
        x.fill(k)
        compute(STEP_S * SHARE - (time.thread_time() - begin), a)
        yield x, np.full(32, k)


def hidden(count, rounds):
    a = np.ones(10_000)

    def loop(batches):
        times = []
        for batch in batches:
            times.append(time.perf_counter())
            if batch is not None:
                batch[0][0, 0, 0, 0] == batch[1][0]  # noqa: B015
            compute(STEP_S, a)
        times.append(time.perf_counter())
        return harness.median(map(float, np.diff(times[3:])))  # the first batch cannot be hidden

    calls = {"none": lambda: loop([None] * count), "in the loop": lambda: loop(minibatches(count))}
    calls["ahead"] = lambda: loop(load_ahead(lambda: minibatches(count)))
    found = harness.interleaved(calls, rounds)
    more = {f"{way}, % more": 100 * (harness.ratio(found[way], found["none"]) - 1) for way in list(calls)[1:]}
    return {**{way: 1e3 * harness.median(values) for way, values in found.items()}, **more}


def measure():
    options = harness.options(__doc__, rounds=9)
    quick = options.quick
    sizes = [(mb, workers) for mb in (MEGABYTES[:1] if quick else MEGABYTES) for workers in WORKERS]
    found = [rates_of(*size, *((2, 0.05) if quick else (options.rounds, ROUND_S))) for size in sizes]
    rows, busy = zip(*found)
    harness.table("GB/s that arrive at each worker", rows, 200)
    harness.table("processor's ms for each GB", busy)
    step = hidden(6 if quick else 25, 1 if quick else 3)
    harness.table("ms a step of 100 ms", [step])
    for row in rows:
        name = f"{row['MB']} MB, {row['workers']} workers"
        best = max(row["send / copyto"], row["all / copyto"])
        harness.goal(f"{name}, to each: the same batch, or one worker's own; of copyto", best, 0.5)
        harness.goal(f"{name}, own batches, all together, of copyto", row["send / copyto"] * row["workers"], 0.5)
    harness.goal("loading of 0.8 of a step ahead, % more", step["ahead, % more"], 5, at_least=False)
    harness.save("batches", {"rows": rows, "busy": busy, "step": step}, options)


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in ("shared", "sockets"):
        (read_shared if sys.argv[1] == "shared" else read_sockets)(sys.argv[2], int(sys.argv[3]))
    else:
        harness.main(measure)
