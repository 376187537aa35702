"""Control requests: round trip of one worker, total of four, and what an idle controller costs.

The reference in the same run is a bare ZeroMQ REQ/REP echo between two processes over the same kind of socket.

    python benchmarks/control.py [--quick]
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import harness
import numpy as np
import psutil
import zmq
from rich.console import Console

from platoon_base.cli.report import Display
from platoon_base.cli.screen import Screen
from platoon_base.job import JobOptions, host_job

CLIENT = """
import json, sys, time
from platoon_base import connect

with connect() as worker:
    times = []
    worker.barrier()
    end = time.perf_counter() + float(sys.argv[1])
    while (began := time.perf_counter()) < end:
        worker.send_req("echo", 7)
        times.append(time.perf_counter() - began)
    worker.barrier()
    with open(f"{sys.argv[2]}/rank{worker.global_rank}", "w") as file:
        json.dump(times, file)
"""
ECHO = """
import sys, zmq
with zmq.Context() as context, context.socket(zmq.REP) as socket:
    socket.bind(sys.argv[1])
    while (message := socket.recv()) != b"end":
        socket.send(message)
    socket.send(b"")
"""
IDLE = """
import sys, time
from platoon_base import connect
with connect() as worker:
    worker.barrier()
    time.sleep(float(sys.argv[1]))
"""
REPORTING = """
import sys, time
from platoon_base import connect
seconds = float(sys.argv[1])
with connect() as worker:
    worker.barrier()
    inside, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        began = time.thread_time()
        if sys.argv[3] == "True":
            worker.report({"loss": began, "error": 0.25})
        inside += time.thread_time() - began
    with open(f"{sys.argv[2]}/rank{worker.global_rank}", "w") as file:
        file.write(str(inside / seconds))
"""


def run_job(code, workers, *args, observer=None):
    with host_job(workers, JobOptions(handler=lambda req, rank, info: info, observer=observer)) as job:
        for rank in range(workers):
            job.start(rank, [sys.executable, "-c", code, *map(str, args)], dict(os.environ), None)
        before = time.process_time()
        result = job.serve()
        if result.status:
            raise SystemExit(f"a worker FAILED with status {result.status}")
        return time.process_time() - before


def answers(folder, workers):
    return [json.loads(Path(folder, f"rank{rank}").read_text()) for rank in range(workers)]


def round_trips(workers, seconds):
    with tempfile.TemporaryDirectory() as folder:
        run_job(CLIENT, workers, seconds, folder)
        return [np.array(times) * 1e6 for times in answers(folder, workers)]


def reporting(workers, seconds, reports):
    """Let each worker report a hundred times a second on a screen; returns the launcher's and a worker's CPU shares."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=100, height=40)
        with Screen(console, Path(folder), workers) as screen:
            spent = run_job(REPORTING, workers, seconds, folder, reports, observer=screen.take)
        return spent / seconds, max(answers(folder, workers))


def bare_round_trips(seconds):
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/echo"
        echo = psutil.Popen([sys.executable, "-c", ECHO, address])
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:

            def call(message):
                socket.send(message)
                socket.recv()

            socket.connect(address)
            call(b"7")  # it may take longer to start than is measured
            times, end = [], time.perf_counter() + seconds
            while time.perf_counter() < end:
                times.append(harness.seconds(lambda: call(b"7")))
            call(b"end")
        echo.wait(10)
        return [np.array(times[10:]) * 1e6]


def measure():
    options = harness.options(__doc__)
    seconds, rounds, idle_s = (0.3, 2, 3.0) if options.quick else (1.0, 5, 20.0)
    calls = {"bare echo": lambda: bare_round_trips(seconds)}
    calls |= {f"{workers} workers": lambda w=workers: round_trips(w, seconds) for workers in (1, 2, 4)}
    rows, samples = {}, {}
    for name, found in harness.interleaved(calls, rounds).items():
        parts = samples[name] = [np.concatenate(times) for times in found]
        middle = harness.median(float(np.median(part)) for part in parts)
        tail = harness.median(float(np.percentile(part, 99)) for part in parts)
        total = harness.median(len(part) / seconds for part in parts)
        rows[name] = {"": name, "median us": middle, "p99 us": tail, "requests/s in total": total}
    rows["bare echo"]["requests/s in total"] = 1e6 / rows["bare echo"]["median us"]
    harness.table("Round trips over ipc", list(rows.values()))
    one = rows["1 workers"]["median us"]
    print(f"one worker against the bare echo: {one / rows['bare echo']['median us']:.2f} x")
    idle = run_job(IDLE, 4, idle_s) / idle_s
    with open(os.devnull, "w") as nowhere, Display(Console(file=nowhere, force_terminal=True)) as display:
        shown = run_job(IDLE, 4, idle_s, observer=display.show) / idle_s
    shares = []
    for workers in (1, 4):
        screen, silent = reporting(workers, idle_s, False)
        launcher, mine = reporting(workers, idle_s, True)
        shares.append({"workers": workers, "launcher": launcher, "without reports": screen, "worker": mine - silent})
    harness.table("100 reports a second of each worker on a screen: shares of a core", shares)
    harness.goal("round trip of one worker, median, us", one, 100, at_least=False)
    harness.goal("requests/s of 4 workers together", rows["4 workers"]["requests/s in total"], 10_000)
    harness.goal("idle controller, start and end included, share of a core", idle, 0.01, at_least=False)
    harness.goal("idle controller with live lines, share of a core", shown, 0.01, at_least=False)
    harness.goal("launcher, 4 workers with 100 reports/s, share of a core", shares[1]["launcher"], 0.005, False)
    harness.goal("worker, 100 reports/s, share of a core", shares[1]["worker"], 0.005, at_least=False)
    path = harness.save("control", {"results": rows, "idle": idle, "idle_live": shown, "reporting": shares}, options)
    lines = {name: np.sort(np.concatenate(parts)) for name, parts in samples.items()}
    lines = {name: (times, np.linspace(0, 1, len(times))) for name, times in lines.items()}
    harness.plot(path, {"": lines}, xlim=(10, 3000), xlabel="round trip, us", ylabel="share of requests up to it")


if __name__ == "__main__":
    harness.main(measure)
