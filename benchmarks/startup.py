"""How long it takes until all workers have made their first update, and how near that is to what must be.

A Lasagne network of two hidden layers under `python` and under `platoon launch`, with an empty compile directory (cold)
and a filled one (warm), all kinds in turn. The time is from just before the launcher is started to the end of the last
worker's first update. The ratios, taken from runs that follow each other, are what to look at.

The floor is what 4 workers must take if 1 worker takes S + P: S, the CPU time that is spent once (launcher, imports,
compilers), and P, what each worker spends itself, of which as many run at a time as there are cores.

    python benchmarks/startup.py [--quick]
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

CORES = len(os.sched_getaffinity(0))
GOALS = {"cold": 1.5, "warm": 1.2}  # 4 workers against 1
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
PLAIN, ONE, FOUR = "python", "launch -n 1", "launch -n 4"
KINDS = {  # name -> (workers, beginning of the command, environment)
    "python, Theano as it is": (1, ["-c", AS_IT_IS], {}),
    PLAIN: (1, [], {}),
    **{f"launch -n {n}": (n, ["-m", "platoon_base", "launch", "-n", str(n)], {}) for n in (1, 2, 4)},
    "launch -n 4, no fork": (4, ["-m", "platoon_base", "launch", "-n", "4"], {"PLATOON_NO_PREFORK": "1"}),
}


def run(kind, script, compile_dir=None):
    workers, command, environment = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        if "launch" in command:
            command = [*command, "--log-dir", f"{folder}/logs"]
        compile_dir = compile_dir or f"{folder}/compiled"
        flags = ",".join(filter(None, [os.environ.get("THEANO_FLAGS"), f"base_compiledir={compile_dir}"]))
        env = {**os.environ, **environment, "THEANO_FLAGS": flags}
        began = time.monotonic()
        with open(f"{folder}/output", "w") as output:
            command = [sys.executable, *command, script, folder]
            process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        rows = [json.loads(path.read_text()) for path in Path(folder).glob("*.json")]
        if process.returncode or len(rows) != workers:
            raise SystemExit(f"{Path(folder, 'output').read_text()}\n{kind} FAILED")
    own = statistics.mean(row["own_cpu"] for row in rows)
    found = {"seconds": max(row["end"] for row in rows) - began, "cpu": usage.ru_utime + usage.ru_stime}
    return {**found, "private_cpu": own, "compiled": sum(row["compiled"] for row in rows)}


def evaluate(state, runs):
    seconds = {kind: [row["seconds"] for row in rows] for kind, rows in runs.items()}
    table = []
    for kind, taken in seconds.items():
        row = {"": kind, "median s": harness.median(taken), "min s": min(taken), "max s": max(taken)}
        row["x python"] = harness.ratio(taken, seconds[PLAIN])
        table.append({**row, "modules compiled": int(harness.median(each["compiled"] for each in runs[kind]))})
    harness.table(f"{state}: seconds to the last worker's first update", table)
    private = harness.median(row["private_cpu"] for row in runs[ONE])
    shared = harness.median(row["cpu"] for row in runs[ONE]) - private
    floor = (shared + math.ceil(4 / CORES) * private) / (shared + private)
    print(f"floor of 4 workers to 1: {floor:.2f} (S = {shared:.2f} s, P = {private:.2f} s, {CORES} cores)")
    four_to_one = harness.ratio(seconds[FOUR], seconds[ONE])
    harness.goal(f"{state}, 4 workers to 1", four_to_one, GOALS[state], at_least=False)
    about = {"four_to_one": four_to_one, "floor": floor, "shared_cpu": shared, "private_cpu": private}
    return {"kinds": table, "seconds": seconds, **about}


def measure():
    options = harness.options(__doc__)
    kinds = [PLAIN, ONE, FOUR] if options.quick else list(KINDS)
    with tempfile.TemporaryDirectory() as folder:
        script = f"{folder}/mlp.py"
        Path(script).write_text(SCRIPT)
        results = {}
        for state, rounds in {"cold": 1 if options.quick else 3, "warm": 3 if options.quick else 9}.items():
            kept = None if state == "cold" else f"{folder}/warm"
            calls = {kind: lambda k=kind, kept=kept: run(k, script, kept) for kind in kinds}
            results[state] = evaluate(state, harness.interleaved(calls, rounds, skip=int(state == "warm")))
    path = harness.save("startup", results, options)
    panels = {}
    for state, found in results.items():
        middle = [harness.median(found["seconds"][kind]) for kind in kinds]
        panels[f"{state}: 4 workers to 1 = {found['four_to_one']:.2f}"] = {"median": (middle, kinds)}
    harness.plot(path, panels, log=False, xlabel="seconds to the last worker's first update")


if __name__ == "__main__":
    harness.main(measure)
