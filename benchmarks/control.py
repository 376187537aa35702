"""Control requests: round trip of one worker, total of four, and what an idle controller costs.

The reference in the same run is a bare ZeroMQ REQ/REP echo between two processes over the same kind of socket.

    python benchmarks/control.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import report
import zmq
from rich.console import Console

from platoon_base.cli.display import Display
from platoon_base.cli.screen import Screen
from platoon_base.job import JobOptions, host_job

CLIENT = """
import json, sys, time
import numpy as np
from platoon_base import connect

seconds, rounds, folder = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with connect() as worker:
    times = []
    for _ in range(rounds):
        worker.barrier()
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            worker.send_req("echo", 7)
            times.append(time.perf_counter() - began)
    worker.barrier()
    with open(f"{folder}/rank{worker.global_rank}.json", "w") as file:
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
seconds, folder, reports = float(sys.argv[1]), sys.argv[2], sys.argv[3] == "True"
with connect() as worker:
    worker.barrier()
    inside, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        began = time.thread_time()
        if reports:
            worker.report({"loss": began, "error": 0.25})
        inside += time.thread_time() - began
    with open(f"{folder}/rank{worker.global_rank}.share", "w") as file:
        file.write(str(inside / seconds))
"""


def run_job(code: str, workers: int, *args: object, observer=None) -> float:
    """Run code on so many workers; returns the CPU seconds that the controller took."""
    with host_job(workers, JobOptions(handler=lambda req, rank, info: info, observer=observer)) as job:
        for rank in range(workers):
            job.start(rank, [sys.executable, "-c", code, *map(str, args)], dict(os.environ), None)
        before = time.process_time()
        result = job.serve()
        if result.status:
            raise SystemExit(f"a worker failed with status {result.status}")
        return time.process_time() - before


def round_trips(workers: int, seconds: float, rounds: int) -> list[np.ndarray]:
    """Return each worker's round trip times in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        run_job(CLIENT, workers, seconds, rounds, folder)
        return [np.array(json.loads(Path(folder, f"rank{r}.json").read_text())) * 1e6 for r in range(workers)]


def reporting(workers: int, seconds: float, reports: bool) -> tuple[float, float]:
    """Let each worker report a hundred times a second on a screen; returns the launcher's and a worker's CPU shares."""
    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=100, height=40)
        with Screen(console, Path(folder), workers) as screen:
            spent = run_job(REPORTING, workers, seconds, folder, reports, observer=screen.observe)
        shares = [float(Path(folder, f"rank{rank}.share").read_text()) for rank in range(workers)]
        return spent / seconds, max(shares)


def bare_round_trips(seconds: float) -> np.ndarray:
    """Return round trip times of a bare echo in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/echo"
        echo = psutil.Popen([sys.executable, "-c", ECHO, address])
        with zmq.Context() as context, context.socket(zmq.REQ) as socket:
            socket.connect(address)
            socket.send(b"7")
            socket.recv()  # it may take longer to start than is measured
            times = []
            end = time.perf_counter() + seconds
            while (began := time.perf_counter()) < end:
                socket.send(b"7")
                socket.recv()
                times.append(time.perf_counter() - began)
            socket.send(b"end")
            socket.recv()
        echo.wait(10)
        return np.array(times[10:]) * 1e6


def main() -> None:
    """Measure, print, plot, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter; nothing is saved")
    quick = parser.parse_args().quick
    seconds, repetitions, idle_s = (0.3, 2, 3.0) if quick else (1.0, 5, 20.0)

    samples: dict[str, list[np.ndarray]] = {"bare": [], "1": [], "2": [], "4": []}
    totals: dict[str, list[float]] = {"1": [], "2": [], "4": []}
    for _ in range(repetitions):
        samples["bare"].append(bare_round_trips(seconds))
        for workers in (1, 2, 4):
            times = round_trips(workers, seconds, 1)
            samples[str(workers)].append(np.concatenate(times))
            totals[str(workers)].append(sum(len(t) for t in times) / seconds)

    rows, results = [], {}
    for name, parts in samples.items():
        middle = report.median([float(np.median(part)) for part in parts])
        tail = report.median([float(np.percentile(part, 99)) for part in parts])
        total = report.median(totals[name]) if name in totals else 1e6 / middle
        results[name] = {"median_us": middle, "p99_us": tail, "requests_per_s": total}
        rows.append(["bare echo" if name == "bare" else f"{name} workers", middle, tail, total])
    report.table("Round trips over ipc", ["", "median us", "p99 us", "requests/s in total"], rows)

    idle = run_job(IDLE, 4, idle_s) / idle_s
    with open(os.devnull, "w") as nowhere, Display(Console(file=nowhere, force_terminal=True)) as display:
        shown = run_job(IDLE, 4, idle_s, observer=display.show) / idle_s
    print(f"idle controller with 4 workers: {idle:.2%} of a core; with live lines on a terminal: {shown:.2%}")
    print("(the start and the end of the job included)")
    shares = {}
    for workers in (1, 4):
        screen, silent = reporting(workers, idle_s, False)
        launcher, mine = reporting(workers, idle_s, True)
        shares[workers] = (launcher, mine - silent)
        print(
            f"{workers} workers, each with 100 reports a second, on a screen: launcher {launcher:.2%} of a core "
            f"(without reports {screen:.2%}), each worker {mine - silent:.2%}"
        )
    goals = [
        report.goal("round trip of one worker, median, us", results["1"]["median_us"], 100, at_least=False),
        report.goal("requests/s of 4 workers together", results["4"]["requests_per_s"], 10_000),
        report.goal("idle controller, share of a core", idle, 0.01, at_least=False),
        report.goal("idle controller with live lines, share of a core", shown, 0.01, at_least=False),
        report.goal(
            "launcher, 4 workers with 100 reports/s each, share of a core", shares[4][0], 0.005, at_least=False
        ),
        report.goal("worker, 100 reports/s, share of a core", shares[4][1], 0.005, at_least=False),
    ]
    results["ratio_to_bare"] = results["1"]["median_us"] / results["bare"]["median_us"]
    print(f"one worker against the bare echo: {results['ratio_to_bare']:.2f} x")
    if not quick:
        plot(
            samples,
            report.save(
                "control", {"results": results, "idle": idle, "idle_live": shown, "reporting": shares, "goals": goals}
            ),
        )


def plot(samples: dict[str, list[np.ndarray]], path) -> None:
    """Draw the distributions of the round trip times."""
    figure, axes = report.figure(figsize=(6, 3.6))
    for name, parts in samples.items():
        times = np.sort(np.concatenate(parts))
        label = "bare echo" if name == "bare" else f"{name} workers"
        axes.plot(times, np.linspace(0, 1, len(times)), label=label)
    axes.set(xscale="log", xlim=(10, 3000), xlabel="round trip, us", ylabel="share of requests up to it")
    axes.legend()
    figure.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    main()
