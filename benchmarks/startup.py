"""How long it takes until all workers have made their first update, and how near that is to what must be.

    python benchmarks/startup.py [--quick]

Runs a Lasagne network of two hidden layers under `python` and under `platoon launch`, with an empty compile directory
(cold) and a filled one (warm), all kinds in turn, and reports medians. The time is from just before the launcher is
started to the end of the last worker's first update. Other processes on the machine disturb: the ratios, taken from
runs that follow each other, are what to look at.

The floor is what 4 workers must take if 1 worker takes S + P: S, the CPU time that is spent once (launcher, imports,
compilers), and P, what each worker spends itself, of which as many run at a time as there are cores.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report

CORES = len(os.sched_getaffinity(0))
GOALS = {"cold": 1.5, "warm": 1.2}  # 4 workers against 1
REPEATS = {"cold": 3, "warm": 9}
QUICK_REPEATS = {"cold": 1, "warm": 3}

SCRIPT = """
import json, os, sys, time
import platoon_plugins.lasagne
import numpy as np
import lasagne
import theano
import theano.tensor as T
from lasagne.layers import DenseLayer, DropoutLayer, InputLayer, get_all_params, get_output

x, y = T.matrix("x"), T.ivector("y")
network = InputLayer((None, 64), x)
network = DropoutLayer(DenseLayer(network, 256), 0.5)
network = DropoutLayer(DenseLayer(network, 256), 0.5)
network = DenseLayer(network, 10, nonlinearity=lasagne.nonlinearities.softmax)
loss = lasagne.objectives.categorical_crossentropy(get_output(network), y).mean()
updates = lasagne.updates.adam(loss, get_all_params(network, trainable=True))
train = theano.function([x, y], loss, updates=updates)
rng = np.random.RandomState(0)
train(rng.rand(128, 64).astype(theano.config.floatX), rng.randint(0, 10, 128).astype("int32"))
end = time.monotonic()
times = os.times()
with open(f"{sys.argv[1]}/{os.environ.get('PLATOON_RANK', 0)}.json", "w") as file:
    compiled = theano.gof.cc.get_module_cache().stats[2]
    json.dump({"end": end, "own_cpu": times.user + times.system, "compiled": compiled}, file)
"""

AS_IT_IS = """
import runpy, sys
from platoon_base.compat import theano as theano_repairs
theano_repairs.install = lambda: None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

UNREPAIRED, PLAIN = "python, Theano as it is", "python"
KINDS = {  # name -> (workers, beginning of the command, environment)
    UNREPAIRED: (1, ["-c", AS_IT_IS], {}),
    PLAIN: (1, [], {}),
    "launch -n 1": (1, ["-m", "platoon_base", "launch", "-n", "1"], {}),
    "launch -n 2": (2, ["-m", "platoon_base", "launch", "-n", "2"], {}),
    "launch -n 4": (4, ["-m", "platoon_base", "launch", "-n", "4"], {}),
    "launch -n 4, no fork": (4, ["-m", "platoon_base", "launch", "-n", "4"], {"PLATOON_NO_PREFORK": "1"}),
}


def run(kind, script, compile_dir):
    """Run the script once; returns seconds and CPU seconds."""
    workers, command, environment = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        if "launch" in command:
            command = [*command, "--log-dir", f"{folder}/logs"]
        flags = ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), f"base_compiledir={compile_dir}"]))
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *command, script, folder],
            env={**os.environ, **environment, "THEANO_FLAGS": flags},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        process.stderr.close()
        if process.returncode:
            logs = "\n".join(path.read_text() for path in Path(folder).glob("logs/*.log"))
            raise SystemExit(f"{kind} failed:\n{errors.decode()}\n{logs}")
        rows = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
    assert len(rows) == workers, (kind, rows)
    return {
        "seconds": max(row["end"] for row in rows) - began,
        "cpu": usage.ru_utime + usage.ru_stime,
        "private_cpu": statistics.mean(row["own_cpu"] for row in rows),
        "compiled": sum(row["compiled"] for row in rows),
    }


def measure(kinds, repeats):
    """Run all kinds in turn, again and again."""
    runs = {state: {kind: [] for kind in kinds} for state in ("cold", "warm")}
    with tempfile.TemporaryDirectory() as folder:
        script = f"{folder}/mlp.py"
        Path(script).write_text(SCRIPT)
        for i in range(repeats["cold"]):
            for kind in kinds:
                with tempfile.TemporaryDirectory() as compile_dir:
                    runs["cold"][kind].append(run(kind, script, compile_dir))
                print(f"cold {i}: {kind:24} {runs['cold'][kind][-1]['seconds']:6.2f} s", flush=True)
        for kind in kinds:
            run(kind, script, f"{folder}/warm")
        for _ in range(repeats["warm"]):
            for kind in kinds:
                runs["warm"][kind].append(run(kind, script, f"{folder}/warm"))
    return runs


def evaluate(runs):
    """Reduce the runs of one state to medians, ratios and the floor."""
    median = {
        kind: {name: statistics.median(row[name] for row in rows) for name in rows[0]} for kind, rows in runs.items()
    }
    one, four = "launch -n 1", "launch -n 4"

    def ratio(a, b):
        return statistics.median(x["seconds"] / y["seconds"] for x, y in zip(runs[a], runs[b]))

    private = median[one]["private_cpu"]
    shared = median[one]["cpu"] - private
    return {
        "median": median,
        "seconds": {kind: [round(row["seconds"], 3) for row in rows] for kind, rows in runs.items()},
        "to_python": {kind: ratio(kind, PLAIN) for kind in runs},
        "four_to_one": ratio(four, one),
        "floor": (shared + math.ceil(4 / CORES) * private) / (shared + private),
        "shared_cpu": shared,
        "private_cpu": private,
    }


def show(results):
    """Print the tables and what was reached; returns the goals."""
    goals = []
    headings = ["", "median s", "min s", "max s", "x python", "modules compiled"]
    for state, result in results.items():
        rows = [
            [kind, result["median"][kind]["seconds"], min(seconds), max(seconds), result["to_python"][kind],
             int(result["median"][kind]["compiled"])]
            for kind, seconds in result["seconds"].items()
        ]  # fmt: skip
        report.table(f"{state}: seconds to the last worker's first update", headings, rows)
        print(
            f"floor of 4 workers to 1: {result['floor']:.2f} "
            f"(S = {result['shared_cpu']:.2f} s, P = {result['private_cpu']:.2f} s, {CORES} cores)"
        )
        goals.append(report.goal(f"{state}, 4 workers to 1", result["four_to_one"], GOALS[state], at_least=False))
    return goals


def draw(results, path):
    """Plot the medians, with the range of all runs."""
    figure, panels = report.figure(ncols=2, figsize=(12, 3.4))
    for axes, (state, result) in zip(panels, results.items()):
        kinds = list(result["seconds"])
        medians = [result["median"][kind]["seconds"] for kind in kinds]
        lows = [m - min(result["seconds"][kind]) for m, kind in zip(medians, kinds)]
        highs = [max(result["seconds"][kind]) - m for m, kind in zip(medians, kinds)]
        colors = ["tab:blue" if "launch" in kind else "tab:gray" for kind in kinds]
        axes.barh(kinds, medians, xerr=[lows, highs], color=colors, height=0.6, capsize=3)
        axes.invert_yaxis()
        axes.set_xlabel("seconds to the last worker's first update")
        axes.set_title(
            f"{state}: 4 workers to 1 = {result['four_to_one']:.2f}, floor {result['floor']:.2f}", fontsize=10
        )
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main(quick=False):
    """Measure, print, and write docs/benchmarks/startup.json and startup.png."""
    kinds = [kind for kind in KINDS if not quick or kind in (PLAIN, "launch -n 1", "launch -n 4")]
    repeats = QUICK_REPEATS if quick else REPEATS
    runs = measure(kinds, repeats)
    results = {state: evaluate(runs[state]) for state in runs}
    goals = show(results)
    if not quick:
        draw(results, report.save("startup", {"repeats": repeats, **results, "goals": goals}))
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few runs, and no files written")
    main(**vars(parser.parse_args()))
