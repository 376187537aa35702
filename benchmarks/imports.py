"""How long it takes to import the package and to see the help, next to `import numpy`.

    python benchmarks/imports.py [--repeats 25]

Each repeat starts one process of each kind in turn. The ratio of two that follow each other holds on a machine that is
busy with other things, so the medians of ratios are what to look at; the ratio of CPU seconds depends on it even less.
All have their bytecode, as after an installation.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

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
    """Run Python once; returns seconds and CPU seconds."""
    began = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, *arguments], env=environment, **quiet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"python {' '.join(arguments)} failed with status {process.returncode}")
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime


def measure(repeats):
    """Run all kinds in turn, again and again; returns their times by kind."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for arguments in KINDS.values():
            run(arguments, environment)
        rounds = [{kind: run(arguments, environment) for kind, arguments in KINDS.items()} for _ in range(repeats)]
    return {kind: [times[kind] for times in rounds] for kind in KINDS}


def main(repeats=25):
    """Measure, print, and write docs/benchmarks/imports.json."""
    times = measure(repeats)
    results = {}
    for kind, pairs in times.items():
        wall, cpu = ([pair[i] for pair in pairs] for i in (0, 1))
        of_numpy = [[pair[i] for pair in times[NUMPY]] for i in (0, 1)]
        results[kind] = {
            "seconds": statistics.median(wall),
            "cpu_seconds": statistics.median(cpu),
            "to_numpy": statistics.median(a / b for a, b in zip(wall, of_numpy[0])),
            "cpu_to_numpy": statistics.median(a / b for a, b in zip(cpu, of_numpy[1])),
        }
    headings = ["", "median s", "CPU s", "x import numpy", "x its CPU"]
    report.table("start of a process", headings, [[kind, *values.values()] for kind, values in results.items()])
    goals = [
        report.goal(f"{kind}, times import numpy", results[kind]["to_numpy"], wanted, at_least=False)
        for kind, wanted in GOALS.items()
    ]
    report.save("imports", {"repeats": repeats, "kinds": results, "goals": goals})
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=25, help="processes of each kind")
    main(**vars(parser.parse_args()))
