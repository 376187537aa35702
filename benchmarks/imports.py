"""How long it takes to import the package and to see the help, next to `import numpy`.

Each round starts one process of each kind in turn. The ratio of two that follow each other holds on a machine that is
busy with other things, so the medians of ratios are what to look at; the ratio of CPU seconds depends on it even less.
All have their bytecode, as after an installation.

    python benchmarks/imports.py [--rounds 25]
"""

import os
import subprocess
import sys
import tempfile
import time

import harness

NUMPY = "import numpy"
KINDS = {
    NUMPY: ["-c", "import numpy"],
    "python": ["-c", "pass"],
    "import platoon_base": ["-c", "import platoon_base"],
    "platoon --help": ["-m", "platoon_base", "--help"],
    "platoon jobs": ["-m", "platoon_base", "jobs"],
    "from platoon_base import connect": ["-c", "from platoon_base import connect"],
    "connect(), a job of one": ["-c", "from platoon_base import connect; connect()"],
    "platoon launch --help": ["-m", "platoon_base", "launch", "--help"],
}
GOALS = {"import platoon_base": 1.6, "platoon --help": 1.0}  # times as long as import numpy


def run(arguments, environment):
    began = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *arguments], env=environment, **quiet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"python {' '.join(arguments)} FAILED with status {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def measure():
    options = harness.options(__doc__, rounds=25)
    path = os.pathsep.join(filter(None, [str(harness.ROOT), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        calls = {kind: lambda words=words: run(words, environment) for kind, words in KINDS.items()}
        found = harness.interleaved(calls, 3 if options.quick else options.rounds, skip=1)
    times = {kind: list(zip(*pairs)) for kind, pairs in found.items()}
    rows = []
    for kind, (wall, cpu) in times.items():
        row = {"": kind, "median s": harness.median(wall), "CPU s": harness.median(cpu)}
        row["x import numpy"] = harness.ratio(wall, times[NUMPY][0])
        rows.append({**row, "x its CPU": harness.ratio(cpu, times[NUMPY][1])})
    harness.table("start of a process", rows)
    for row in rows:
        if row[""] in GOALS:
            harness.goal(f"{row['']}, times import numpy", row["x import numpy"], GOALS[row[""]], at_least=False)
    harness.save("imports", {"rounds": options.rounds, "kinds": rows}, options)


if __name__ == "__main__":
    harness.main(measure)
