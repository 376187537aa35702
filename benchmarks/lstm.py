"""How training scales: the LSTM of the original Platoon's example on 1, 2, 4 ... devices, in mini-batches per second.

    python benchmarks/lstm.py --devices cuda0 cuda1 cuda2 cuda3
    python benchmarks/lstm.py --devices cpu cpu --units 32 --vocabulary 100 --seconds 3

Measured are the plain loop (plain `python`, no framework) on one device, first and last; the same loop once on each
device at the same time, which tells what N processes lose by sharing a host; and, under `platoon launch` on 1, 2, 4 ...
devices, asynchronous and synchronous EASGD in turn with workers that never synchronize. All run
scripts/lstm_train.py.

A rate is that of all workers together, in the window in which all of them are timed. Each process is timed in several
repeats, after a warm-up; rates are medians, with the range; ratios are to the plain loop on one device, and to as many
workers that never synchronize. Results are written after every start of processes: a run that is killed keeps them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import report

from platoon_base.cli.launcher import worker_environment
from platoon_base.devices.discovery import cuda_devices

SCRIPT = Path(__file__).parent / "scripts" / "lstm_train.py"
PLAIN, TOGETHER = "plain loop", "plain loops, one a device"
MODES = {"plain": "workers that never synchronize", "async": "EASGD, asynchronous", "sync": "EASGD, synchronous"}


class Runs:
    """What was measured so far: rates by (kind, number of devices)."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rates: dict[tuple[str, int], list[float]] = {}
        self.starts: list[dict] = []
        self.batches = 0

    def plain(self, devices: list[str], batches: int | None = None, keep: bool = True) -> list[dict]:
        """Run the plain loop on each of the devices at the same time."""
        count = len(devices)
        commands = [
            (["--rank", rank, "--peers", count], worker_environment(device, count, environment()))
            for rank, device in enumerate(devices)
        ]
        rows = self._run([([sys.executable, SCRIPT], words, env) for words, env in commands], ["plain"], batches)
        if keep:
            self._keep(rows, {"plain": PLAIN if count == 1 else TOGETHER}, devices)
        return rows

    def launch(self, devices: list[str]) -> None:
        """Run all modes as workers of one job."""
        modes = ["plain", *self.options.modes]
        launcher = [sys.executable, "-m", "platoon_base", "launch", "-D", *devices, SCRIPT]
        self._keep(self._run([(launcher, [], environment())], modes, None), MODES, devices)

    def _run(self, commands: list, modes: list[str], batches: int | None) -> list[dict]:
        """Run processes side by side to their end; returns what they wrote."""
        options = self.options
        repeats = 1 if batches else options.repeats
        with tempfile.TemporaryDirectory() as folder:
            common = ["--modes", *modes, "--batches", batches or self.batches, "--repeats", repeats]
            common += ["--vocabulary", options.vocabulary, "--units", options.units]
            processes = []
            try:
                for i, (begin, words, env) in enumerate(commands):
                    if "launch" in begin:
                        begin = [*begin[:4], "--log-dir", folder, *begin[4:]]
                    with open(f"{folder}/output{i}.log", "w") as log:
                        command = [*map(str, [*begin, folder, *common, *words])]
                        processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
                deadline = time.monotonic() + options.limit
                statuses = [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
            except subprocess.TimeoutExpired:
                statuses = [f"nothing within {options.limit} s"]
            finally:
                stop(processes)
            rows = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("[0-9]*.json"))]
            if any(statuses):
                for path in sorted(Path(folder).glob("output*.log")):  # the launcher's holds the ends of its workers'
                    print(f"--- {path.name}\n{path.read_text()[-3000:]}", flush=True)
                print(f"FAILED with {statuses}: {len(rows)} results are kept", flush=True)
        return rows

    def _keep(self, rows: list[dict], kinds: dict[str, str], devices: list[str]) -> None:
        """Take in what one start gave, print a line on it, and write all results."""
        groups: dict[tuple[str, int], list[dict]] = {}
        for row in rows:
            groups.setdefault((row["mode"], row["repeat"]), []).append(row)
        told = {}
        for (mode, _), group in groups.items():
            if len(group) == len(devices):  # else a worker is missing: no rate of all together
                rates = self.rates.setdefault((kinds[mode], len(devices)), [])
                rates.append(total_rate([row["stamps"] for row in group]))
                told.setdefault(kinds[mode], []).append(round(rates[-1], 2))
        if rows:
            off = sorted({row["rank"] for row in rows if devices[row["rank"]] != "cpu" and not row["on_gpu"]})
            if off:
                print(f"WARNING: workers {off} were NOT on their device but on the CPU", flush=True)
            ready = round(max(row["ready_after"] for row in rows), 1)
            start = {"devices": devices, "ready_after_s": ready, "rates": told, "not_on_device": off}
            self.starts.append({**start, "center": rows[0]["center"]})
            print(f"[{time.monotonic() - BEGAN:5.0f} s] {' '.join(devices)}: ready after {ready} s, {told}", flush=True)
        self.save()

    def ratios(self) -> list[dict]:
        """Return, of each kind and number of devices, median, range, and the ratios to what does not synchronize."""
        return [
            {
                "kind": kind, "devices": count, "rate": report.median(rates), "lowest": min(rates),
                "highest": max(rates), "x_plain": self._ratio(rates, PLAIN, 1),
                "x_unsynchronized": self._ratio(rates, MODES["plain"], count), "runs": len(rates),
            }
            for (kind, count), rates in sorted(self.rates.items(), key=lambda item: (item[0][1], item[0][0]))
        ]  # fmt: skip

    def _ratio(self, rates: list[float], kind: str, count: int) -> float | None:
        others = self.rates.get((kind, count))
        return report.median(rates) / report.median(others) if others else None

    def save(self) -> None:
        """Write everything."""
        sizes = {k: v for k, v in vars(self.options).items() if k != "out"}
        results = {"options": sizes, "batches": self.batches, "results": self.ratios()}
        report.save("lstm", {**results, "starts": self.starts}, self.options.out)


def environment() -> dict[str, str]:
    """Return the environment of all processes: float32 throughout, and this repository's packages."""
    flags = ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), "floatX=float32"]))
    path = os.pathsep.join(filter(None, [str(SCRIPT.parents[2]), os.environ.get("PYTHONPATH")]))
    # On CPUs too each worker starts by itself, as it must on GPUs.
    return {**os.environ, "THEANO_FLAGS": flags, "PYTHONPATH": path, "PLATOON_NO_PREFORK": "1"}


def stop(processes: list[subprocess.Popen]) -> None:
    """End what still runs, politely first: a launcher then ends its workers."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def total_rate(stamps: list[list[float]]) -> float:
    """Return mini-batches per second of all workers together, in the window in which all of them were timed."""
    begin, end = max(s[0] for s in stamps), min(s[-1] for s in stamps)
    if end <= begin:
        return 0.0
    done = (np.diff(np.interp([begin, end], s, np.arange(len(s))))[0] for s in stamps)
    return float(sum(done)) / (end - begin)


def main(options: argparse.Namespace) -> list[dict]:
    """Measure, print, save; returns the rows of the table."""
    devices = options.devices = options.devices or cuda_devices().names
    if not devices:
        print("no CUDA device here; for a run on the CPU see --help")
        return []
    runs = Runs(options)
    print("compiling: the first start fills the caches on disk", flush=True)
    first = runs.plain(devices[:1], batches=20, keep=False)
    if not first:
        raise SystemExit("the plain loop does not run: see above")
    pace = total_rate([row["stamps"] for row in first])
    runs.batches = max(20, 10 * round(pace * options.seconds / 10))
    print(f"ready after {first[0]['ready_after']:.1f} s, {pace:.1f} mini-batches/s", flush=True)
    print(f"each measurement: {options.repeats} times {runs.batches} mini-batches a worker", flush=True)
    runs.plain(devices[:1])
    count = 1
    while count <= len(devices):
        runs.launch(devices[:count])
        count *= 2
    if len(devices) > 1:
        runs.plain(devices)
    runs.plain(devices[:1])
    rows = runs.ratios()
    headings = ["kind", "devices", "mini-batches/s", "from", "to", "x plain loop", "x unsynchronized", "runs"]
    report.table(
        "The LSTM of the original's example; medians",
        headings,
        [["-" if cell is None else cell for cell in row.values()] for row in rows],
    )
    return rows


BEGAN = time.monotonic()

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", nargs="+", help="such as cuda0 cuda1; all CUDA devices by default")
    parser.add_argument("--modes", nargs="+", default=["async", "sync"], choices=["async", "sync"])
    parser.add_argument("--seconds", type=float, default=4, help="of one repeat of one measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=200, help="seconds after which a start is given up")
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--units", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=report.FOLDER, help="folder for lstm.json")
    main(parser.parse_args())
