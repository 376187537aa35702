"""How training scales: the LSTM of the original Platoon's example on 1, 2, 4 ... devices, in mini-batches per second.

    python benchmarks/lstm.py --devices cuda0 cuda1 cuda2 cuda3
    python benchmarks/lstm.py --devices cpu cpu --units 32 --vocabulary 100 --seconds 3

Measured are the plain loop on one device, first and last; the same loop once on each device at the same time, which
tells what N processes lose by sharing a host; and, under `platoon launch` on 1, 2, 4 ... devices, asynchronous and
synchronous EASGD in turn with workers that never synchronize. A rate is that of all workers together, in the window in
which all of them are timed, after a warm-up. Rates are medians, with the range; ratios are to the plain loop on one
device, and to as many workers that never synchronize. Results are written after every start of processes.
"""

import itertools
import json
import os
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np

SCRIPT = harness.ROOT / "benchmarks" / "scripts" / "lstm_train.py"
PLAIN, TOGETHER = "plain loop", "plain loops, one a device"
KINDS = {"plain": "workers that never synchronize", "async": "EASGD, asynchronous", "sync": "EASGD, synchronous"}


class Runs:
    def __init__(self, options):
        self.options, self.rates, self.batches = options, {}, 20

    def run(self, devices, modes, repeats):
        """Train on the devices, in each mode in turn; returns what was written, also by jobs that failed."""
        o, launched = self.options, modes != ["plain"]
        values = {"modes": modes, "batches": self.batches, "repeats": repeats, "vocabulary": o.vocabulary}
        values |= {"units": o.units, "peers": len(devices)}
        # On CPUs too each worker starts by itself, as it must on GPUs.
        env = {**harness.FLOAT32, "PLATOON_NO_PREFORK": "1"}
        with tempfile.TemporaryDirectory() as folder:
            jobs = []
            try:
                for rank, device in enumerate([None] if launched else devices):
                    mine = env if launched else worker_environment(device, len(devices), env)
                    how = {"devices": devices} if launched else {"devices": [device], "launched": False}
                    jobs.append(harness.Job(SCRIPT, {**values, "rank": rank, "rows": folder}, env=mine, **how))
                for job in jobs:
                    job.wait(o.limit)
            except SystemExit as exc:
                print(exc, flush=True)
            finally:
                for job in jobs:
                    job.__exit__()
            return [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]

    def measure(self, devices, modes, kinds):
        groups, found, o = {}, {}, self.options
        rows = self.run(devices, modes, o.repeats)
        for row in rows:
            groups.setdefault((row["mode"], row["repeat"]), []).append(row)
        for (mode, _), group in groups.items():
            if len(group) == len(devices):  # else a worker is missing: no rate of all together
                rate = total_rate([row["stamps"] for row in group])
                self.rates.setdefault((kinds[mode], len(devices)), []).append(rate)
                found.setdefault(kinds[mode], []).append(round(rate, 2))
        if rows:
            off = sorted({row["rank"] for row in rows if devices[row["rank"]] != "cpu" and not row["on_gpu"]})
            if off:
                print(f"WARNING: workers {off} were NOT on their device but on the CPU", flush=True)
            ready = round(max(row["ready_after"] for row in rows), 1)
            print(f"{' '.join(devices)}: ready after {ready} s, {found}", flush=True)
        about = {key: value for key, value in vars(o).items() if key != "out"}
        results = {"options": about, "batches": self.batches, "results": self.ratios()}
        harness.save("lstm", results, o)

    def ratios(self):
        rows = []
        for (kind, count), rates in sorted(self.rates.items(), key=lambda item: (item[0][1], item[0][0])):
            row = {"kind": kind, "devices": count, "rate": harness.median(rates), "lowest": min(rates)}
            row |= {"highest": max(rates), "runs": len(rates)}
            for name, key in (("x_plain", (PLAIN, 1)), ("x_unsynchronized", (KINDS["plain"], count))):
                row[name] = row["rate"] / harness.median(self.rates[key]) if key in self.rates else None
            rows.append(row)
        return rows


def worker_environment(device, count, env):
    from platoon_base.cli import launcher

    whole = launcher.worker_environment(device, count, {**os.environ, **env})
    return {name: value for name, value in whole.items() if os.environ.get(name) != value}


def total_rate(stamps):
    begin, end = max(s[0] for s in stamps), min(s[-1] for s in stamps)
    if end <= begin:
        return 0.0
    done = (np.diff(np.interp([begin, end], s, np.arange(len(s))))[0] for s in stamps)
    return float(sum(done)) / (end - begin)


def scaling(options):
    from platoon_base.devices.discovery import cuda_devices

    devices = options.devices = options.devices or cuda_devices().names
    if not devices:
        print("no CUDA device here; for a run on the CPU see --help")
        return
    runs = Runs(options)
    print("compiling: the first start fills the caches on disk", flush=True)
    first = runs.run(devices[:1], ["plain"], 1)
    if not first:
        raise SystemExit("the plain loop FAILED: see above")
    pace = total_rate([row["stamps"] for row in first])
    runs.batches = max(20, 10 * round(pace * options.seconds / 10))
    print(f"{pace:.1f} mini-batches/s; each measurement: {options.repeats} times {runs.batches} a worker", flush=True)
    runs.measure(devices[:1], ["plain"], {"plain": PLAIN})
    for count in itertools.takewhile(lambda n: n <= len(devices), (2**i for i in itertools.count())):
        runs.measure(devices[:count], ["plain", *options.modes], KINDS)
    if len(devices) > 1:
        runs.measure(devices, ["plain"], {"plain": TOGETHER})
    runs.measure(devices[:1], ["plain"], {"plain": PLAIN})
    harness.table("The LSTM of the original's example, mini-batches/s; medians", runs.ratios())


def measure():
    sizes = {"vocabulary": 10_000, "units": 1024, "repeats": 3, "seconds": 4.0, "limit": 200.0}
    scaling(harness.options(__doc__, devices=[], modes=("async", "sync"), **sizes))


if __name__ == "__main__":
    sys.exit(measure())
